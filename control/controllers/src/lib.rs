//! control-controllers
