//! The scripted model's tokenizer: small, exact and reversible.
//!
//! Every byte, every pair and triple of lower-case letters, and each special token is a token. Text is never parsed for
//! special tokens, so a prompt that contains `<|im_end|>` cannot end a turn. There is no training and no vocabulary
//! file; the only purpose is to have ids that behave like real ones.

/// A token that no ordinary text encodes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    TurnStart,
    TurnEnd,
    ThinkStart,
    ThinkEnd,
    CallStart,
    CallEnd,
}

const LETTERS: u32 = 26;
const PAIRS: u32 = 256;
const TRIPLES: u32 = PAIRS + LETTERS * LETTERS;
const SPECIALS: u32 = TRIPLES + LETTERS * LETTERS * LETTERS;

/// In the order of their ids.
const SPECIAL_TEXTS: [&str; 6] = [
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
];

/// The number of ids; every id is below it.
pub(super) const VOCABULARY: u32 = SPECIALS + SPECIAL_TEXTS.len() as u32;

impl Special {
    pub(super) fn id(self) -> u32 {
        SPECIALS + self as u32
    }
}

/// Appends the ids of ordinary text.
pub(super) fn encode(text: &str, ids: &mut Vec<u32>) {
    let bytes = text.as_bytes();
    ids.reserve(bytes.len() / 2);
    let mut at = 0;
    while at < bytes.len() {
        let (id, length) = match letters(&bytes[at..]) {
            [Some(a), Some(b), Some(c)] => (TRIPLES + (a * LETTERS + b) * LETTERS + c, 3),
            [Some(a), Some(b), None] => (PAIRS + a * LETTERS + b, 2),
            _ => (u32::from(bytes[at]), 1),
        };
        ids.push(id);
        at += length;
    }
}

/// Appends the bytes of one token; an id outside the vocabulary has none.
pub(super) fn decode(id: u32, bytes: &mut Vec<u8>) {
    let letter = |number: u32| b'a' + (number % LETTERS) as u8;
    if id < PAIRS {
        bytes.push(id as u8);
    } else if id < TRIPLES {
        let number = id - PAIRS;
        bytes.extend([letter(number / LETTERS), letter(number)]);
    } else if id < SPECIALS {
        let number = id - TRIPLES;
        let first = letter(number / LETTERS / LETTERS);
        bytes.extend([first, letter(number / LETTERS), letter(number)]);
    } else if let Some(text) = SPECIAL_TEXTS.get((id - SPECIALS) as usize) {
        bytes.extend(text.as_bytes());
    }
}

/// The bytes of one token.
pub(super) fn token_bytes(id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    decode(id, &mut bytes);
    bytes
}

/// The alphabet positions of the next three bytes, up to the first that is no lower-case letter.
fn letters(bytes: &[u8]) -> [Option<u32>; 3] {
    let letter = |index: usize| {
        let byte = bytes.get(index).filter(|byte| byte.is_ascii_lowercase())?;
        Some(u32::from(byte - b'a'))
    };
    let second = letter(1);
    [letter(0), second, second.and_then(|_| letter(2))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        encode(text, &mut ids);
        ids
    }

    fn text(ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| decode(*id, &mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn letters_are_encoded_in_threes_and_everything_else_by_byte() {
        let pieces: Vec<_> = ids("hello Wörld")
            .into_iter()
            .map(token_bytes)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect();
        let expected = ["hel", "lo", " ", "W", "\u{fffd}", "\u{fffd}", "rld"];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn special_tokens_in_text_are_plain_bytes() {
        for (index, special) in SPECIAL_TEXTS.iter().enumerate() {
            assert!(ids(special).iter().all(|id| *id < SPECIALS));
            assert_eq!(text(&ids(special)), *special);
            assert_eq!(text(&[SPECIALS + index as u32]), *special);
        }
        assert_eq!(text(&[Special::CallEnd.id()]), "</tool_call>");
        assert_eq!(Special::CallEnd.id() + 1, VOCABULARY);
        assert_eq!(text(&[VOCABULARY]), "");
    }

    proptest! {
        #[test]
        fn decoding_restores_the_text(any in any::<String>(), words in "[a-d <>|]{0,40}") {
            prop_assert_eq!(text(&ids(&any)), any);
            prop_assert_eq!(text(&ids(&words)), words);
        }

        #[test]
        fn no_two_tokens_have_the_same_bytes(one in 0..VOCABULARY, other in 0..VOCABULARY) {
            prop_assert_eq!(one == other, token_bytes(one) == token_bytes(other));
        }
    }
}
