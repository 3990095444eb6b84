//! Kubernetes API machinery over one workspace of `control-store`.
//!
//! A library: [`ApiServer::router`] is what `rlark-server` mounts behind TLS, and
//! [`ApiServer::in_process`] is the same thing as a tower service, through which kube-rs works
//! without a socket. All kinds, built-in and custom, go through the same code; what a kind is
//! (schema, columns, scope) comes from `control-schema`, who may do what from an
//! [`Authorizer`](control_identity::authorize::Authorizer).
//!
//! The kinds, watches and background work of one server belong to its workspace; any number of
//! servers may live in a process.

mod access;
mod admission;
mod builtin;
mod catalog;
mod common;
mod context;
mod convert;
mod crd;
mod discovery;
mod grants;
mod janitor;
mod negotiate;
mod openapi;
mod proto;
mod render;
mod request;
mod review;
mod routes;
mod server;
mod status;
mod verbs;

pub use request::{FieldValidation, Query, Target, Verb};
pub use routes::{Policy, ROUTES, Route};
pub use server::{ApiServer, InProcess, Options, StartError, Subresource, SubresourceKey};
pub use status::ApiError;
