# The model that calls functions as an image of its own, with the cp that an init container takes it out with. Build context:
# the root of the repository.
ARG IMAGE
FROM ${IMAGE}
COPY models/tools /model
