//! Finds quotes and brackets in 64 bytes of JSON at a time. Only the kind of bracket that a value begins with is
//! counted: in valid JSON, all others are closed before the value ends.

/// Bytes per block.
pub(super) const BLOCK: usize = 64;

/// Bit masks of a block, with one bit per byte.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockMasks {
    /// Opening and closing brackets outside strings.
    opens: u64,
    closes: u64,
    pub(super) ends_in_string: bool,
    /// It contains no quotes and no brackets.
    pub(super) is_plain: bool,
}

impl BlockMasks {
    /// For one type of bracket; `None` if the block contains a backslash, which may escape a quote.
    #[inline]
    pub(super) fn of(block: &[u8; BLOCK], open: u8, begins_in_string: bool) -> Option<Self> {
        // Simple loops over the whole block, which the compiler vectorises.
        let mut quotes = [0_u8; BLOCK];
        let mut opens = [0_u8; BLOCK];
        let mut closes = [0_u8; BLOCK];
        let mut has_escape = 0;
        for at in 0..BLOCK {
            let byte = block[at];
            quotes[at] = u8::from(byte == b'"');
            opens[at] = u8::from(byte == open);
            closes[at] = u8::from(byte == closing(open));
            has_escape |= u8::from(byte == b'\\');
        }
        if has_escape != 0 {
            return None;
        }
        let (quotes, opens, closes) = (bits(&quotes), bits(&opens), bits(&closes));
        // Prefix XOR: a bit is set if the number of quotes up to it is odd, so from an opening quote to before the
        // closing one.
        let mut inside = quotes;
        for shift in [1, 2, 4, 8, 16, 32] {
            inside ^= inside << shift;
        }
        // Applied last, to keep the dependency chain between blocks short.
        let inside = if begins_in_string { !inside } else { inside };
        Some(BlockMasks {
            opens: opens & !inside,
            closes: closes & !inside,
            ends_in_string: inside >> (BLOCK - 1) == 1,
            is_plain: quotes | opens | closes == 0,
        })
    }

    /// Updates the nesting depth; returns the index after the bracket that brings it to 0.
    #[inline]
    pub(super) fn end_from(&self, depth: &mut usize) -> Option<usize> {
        // Fast path: there are too few closing brackets to reach depth 0.
        let (opens, closes) = (self.opens.count_ones(), self.closes.count_ones());
        if closes as usize <= depth.saturating_sub(1) {
            *depth = *depth + opens as usize - closes as usize;
            return None;
        }
        let mut brackets = self.opens | self.closes;
        while brackets != 0 {
            let place = brackets.trailing_zeros();
            if self.opens >> place & 1 == 1 {
                *depth += 1;
            } else {
                *depth -= 1;
                if *depth == 0 {
                    return Some(place as usize + 1);
                }
            }
            brackets &= brackets - 1;
        }
        None
    }
}

/// The closing bracket for an opening one.
pub(super) const fn closing(open: u8) -> u8 {
    open + 2
}

/// Packs bytes of value 0 or 1 into bits.
fn bits(ones: &[u8; BLOCK]) -> u64 {
    let mut bits = 0;
    for (at, eight) in ones.as_chunks::<8>().0.iter().enumerate() {
        // The multiplication gathers the lowest bit of each byte in the top byte.
        let product = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080);
        bits |= (product >> 56) << (8 * at);
    }
    bits
}

/// The length of the leading whole blocks that contain only digits, commas, signs and spaces.
#[inline]
pub(super) fn plain_prefix(bytes: &[u8]) -> usize {
    // No early exit within a block, so that the compiler can vectorise it.
    let is_plain = |byte: &u8| (*byte < b':') & (*byte != b'"');
    let blocks = bytes.chunks_exact(BLOCK);
    let blocks = blocks.take_while(|block| block.iter().fold(true, |all, it| all & is_plain(it)));
    blocks.count() * BLOCK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, byte by byte.
    fn masks_slowly(block: &[u8; BLOCK], open: u8, begins_in_string: bool) -> Option<BlockMasks> {
        let mut marks = BlockMasks {
            opens: 0,
            closes: 0,
            ends_in_string: begins_in_string,
            is_plain: true,
        };
        for (at, byte) in block.iter().enumerate() {
            let is_bracket = *byte == open || *byte == closing(open);
            marks.is_plain &= !is_bracket && *byte != b'"';
            match byte {
                b'\\' => return None,
                b'"' => marks.ends_in_string = !marks.ends_in_string,
                _ if marks.ends_in_string => {}
                byte if *byte == open => marks.opens |= 1 << at,
                byte if *byte == closing(open) => marks.closes |= 1 << at,
                _ => {}
            }
        }
        Some(marks)
    }

    proptest! {
        #[test]
        fn masks_match_a_byte_by_byte_scan(
            block in prop::array::uniform32(any::<u8>()), seed in any::<u64>(), begins_in_string: bool, has_escapes: bool,
        ) {
            let signs: &[u8] = if has_escapes { b"[]{}\"\\" } else { b"[]{}\"" };
            let mut bytes = [b' '; BLOCK];
            for (at, byte) in bytes.iter_mut().enumerate() {
                let any = block[at % 32].wrapping_add(at as u8);
                if seed >> at & 1 == 1 {
                    *byte = signs[usize::from(any) % signs.len()];
                } else if has_escapes || any != b'\\' {
                    *byte = any;
                }
            }
            for open in *b"[{" {
                prop_assert_eq!(
                    BlockMasks::of(&bytes, open, begins_in_string),
                    masks_slowly(&bytes, open, begins_in_string)
                );
            }
        }
    }
}
