//! control-apiserver
