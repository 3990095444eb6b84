//! Label and field selectors of list, watch and deletecollection.

mod field;
mod label;
#[cfg(test)]
mod tests;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Operator, Requirement};

/// Why a selector cannot be parsed or used, with kube's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: {0}")]
    Label(String),
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Field { selector: String, term: String },
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A `LabelSelector` object with an operator that does not exist.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
}
