//! control-plan
