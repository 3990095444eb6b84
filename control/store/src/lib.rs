//! control-store
