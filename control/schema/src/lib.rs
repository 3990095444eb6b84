//! control-schema: the pure half of Kubernetes API machinery. Schemas, strict decoding, patches, selectors,
//! tables, OpenAPI documents and the facts of the built-in kinds, as functions on `serde_json::Value`.
//!
//! No I/O, no clock, no randomness: the caller passes `now` and a random source. `control-apiserver` is the
//! main user; the CLI and tests use it too.

pub mod apply;
pub mod builtin;
pub mod cel;
pub mod error;
pub mod golang;
pub mod names;

pub mod openapi;
pub mod patch;
pub mod path;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod strict;
pub mod table;
pub mod yaml;

pub use error::{Cause, FieldError};
pub use resource::{Resource, Scope};
pub use schema::Schema;
