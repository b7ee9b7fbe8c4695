"""mTLS between the processes of one platform: who a certificate names, and files that may change at any time.

Read in this order: ``settings`` (paths and the platform's name), ``identity`` (roles, and how a certificate names one),
``files`` (the newest valid certificate, key and CAs), ``contexts`` (the same for sockets of ours),
``reloading`` (the context of an HTTP server).  gRPC's part is in the rpc library; the command line makes certificates.
"""
