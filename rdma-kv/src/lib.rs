//! rdma-kv
