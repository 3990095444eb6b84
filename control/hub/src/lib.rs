//! control-hub
