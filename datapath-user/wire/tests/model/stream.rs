//! Any bytes in any split: the decoder gives the same frames, and the same refusal, however they are split.

use datapath_wire::{Decoder, Frame, Hello, WireError, frame::VERSION};

fn greeted() -> Decoder {
    let mut d = Decoder::new();
    let hello = Hello { version: VERSION, features: 0, epoch: 1, node: "a/b".to_owned() };
    d.feed(&Frame::Hello(hello).to_bytes(), |_| {}).unwrap();
    d
}

/// The first byte is the size of the pieces.
pub(crate) fn run(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else { return };
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    let one = greeted().feed(data, |f| whole.push(format!("{f:?}")));
    let mut d = greeted();
    let mut many: Result<(), WireError> = Ok(());
    for part in data.chunks(usize::from(step).max(1)) {
        many = d.feed(part, |f| pieces.push(format!("{f:?}")));
        if many.is_err() {
            break;
        }
    }
    assert_eq!((whole, one), (pieces, many));
}
