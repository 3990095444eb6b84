//! control-schema
