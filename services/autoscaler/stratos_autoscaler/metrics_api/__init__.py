"""``external.metrics.k8s.io/v1beta1``, as an aggregated API of the cluster: what a HorizontalPodAutoscaler asks.

    HPA -> API server (who is it?) -> TLS, its client certificate and headers -> SubjectAccessReview -> ``LoadBoard``

Read in this order: ``settings``, ``server`` and ``tls``, ``front_proxy`` (who asks), ``access`` (whether it may),
``documents`` (the API's own shapes), ``selectors``, ``app`` (paths), ``registration`` (the APIService's caBundle).
"""
