//! Enumerations of text values that stay readable when a newer or older writer used a value that
//! this build does not know.

/// Declares an enum with one variant per known text and `Other` for all the rest. The empty text
/// reads as `Other("")`. In a schema it is a string, with the known values listed when `closed`.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident, $($rest:tt)*) => {
        open_enum!(@type [$(#[$doc])*] $name, $($rest)*);
    };
    (@type [$(#[$doc:meta])*] $name:ident, $kind:ident {
        $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// A text that this build does not know; kept as it was.
            Other(String),
        }

        impl $name {
            /// Every known text.
            pub const KNOWN: &'static [&'static str] = &[$($text),+];

            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(text) => text,
                }
            }

            /// Whether this build knows the value.
            #[must_use]
            pub const fn is_known(&self) -> bool {
                !matches!(self, Self::Other(_))
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::from(text.as_str())
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.as_str().to_owned()
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                open_enum!(@schema $kind $($text),+)
            }
        }
    };
    (@schema closed $($text:literal),+) => {
        schemars::json_schema!({ "type": "string", "enum": ["", $($text),+] })
    };
    (@schema open $($text:literal),+) => {
        schemars::json_schema!({ "type": "string" })
    };
}
pub(crate) use open_enum;
