//! datapath-loader
