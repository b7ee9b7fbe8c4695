# The model that calls functions, and beside it one that no release serves, as an image of its own, with the cp that an
# init container takes them out with. Build context: the root of the repository.
ARG IMAGE
FROM ${IMAGE}
COPY models/tools /model
COPY models/draft /other
