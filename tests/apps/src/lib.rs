//! Real programs over virtual addresses between two sites behind NATs: packages as their users get them from Debian and
//! PyPI, started as their users start them.
