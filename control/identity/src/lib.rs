//! control-identity
