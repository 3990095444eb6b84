//! agent-workload
