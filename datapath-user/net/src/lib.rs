//! datapath-net
