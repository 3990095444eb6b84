//! datapath-relay
