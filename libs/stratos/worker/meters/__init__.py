"""What is measured of a worker's engine and of its device, beside the counts that ``stratos.worker.metrics`` copies.

``steps`` reads every step's result, ``memory`` reckons what steps had to read, ``gpu`` asks NVML when it is scraped.
What cannot be measured has no series: a GPU that is not there, a bandwidth whose peak is not known.
"""
