//! datapath-wire
