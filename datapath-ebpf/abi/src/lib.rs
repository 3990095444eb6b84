//! datapath-abi
