// Memory for the rows of a product, as its kernel wants them to lie.
#pragma once

#include <stdint.h>
#include <stdlib.h>

struct RowBuffer {  // of the thread that lends it to its region; kept, since every product wants one
    float *floats = nullptr;
    int64_t size = 0;
    float *reserve(int64_t wanted) {
        if (wanted > size) {
            free(floats);
            size = wanted;
            floats = (float *)aligned_alloc(4096, (size_t)(wanted * 4 + 4095) / 4096 * 4096);
        }
        return floats;
    }
    ~RowBuffer() { free(floats); }
};

static thread_local RowBuffer row_buffer;
