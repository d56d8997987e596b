//! Sixty-four bytes of JSON at once: where its quotes and brackets are.

/// What is looked at together.
pub(super) const BLOCK: usize = 64;

/// What matters in a block, a bit for each byte.
pub(super) struct Marks {
    /// Brackets that open and that close, outside of strings.
    opens: u64,
    closes: u64,
    pub(super) ends_in_string: bool,
    /// There is nothing in it that begins or ends something.
    pub(super) is_plain: bool,
}

impl Marks {
    /// `None` where a backslash may hide a quote.
    #[inline(always)]
    pub(super) fn of(signs: Signs, begins_in_string: bool) -> Option<Self> {
        let Signs {
            quotes,
            inside,
            opens,
            closes,
            has_escape,
        } = signs;
        if has_escape {
            return None;
        }
        // Here and not before, so that the processor need not wait for one block to begin with the next.
        let inside = if begins_in_string { !inside } else { inside };
        Some(Marks {
            opens: opens & !inside,
            closes: closes & !inside,
            ends_in_string: inside >> (BLOCK - 1) == 1,
            is_plain: quotes | opens | closes == 0,
        })
    }

    /// Follows the brackets from this depth on; gives the place behind the one that brings it to nothing.
    #[inline(always)]
    pub(super) fn end_from(&self, depth: &mut usize) -> Option<usize> {
        // Most blocks are inside, and cannot close everything.
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

/// Where in a block these bytes are, in strings or not. Of brackets, those of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signs {
    quotes: u64,
    /// Where an odd number of quotes has come: from an opening one to before the closing one.
    inside: u64,
    opens: u64,
    closes: u64,
    has_escape: bool,
}

/// The bracket that closes what `open` opens.
pub(super) const fn closing(open: u8) -> u8 {
    open + 2
}

/// Thirty-two bytes at a time, and a bit for each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,pclmulqdq")]
#[inline]
pub(super) fn signs_by_wide(block: &[u8; BLOCK], open: u8) -> Signs {
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_cmpeq_epi8,
        _mm256_movemask_epi8, _mm256_set_m128i, _mm256_set1_epi8,
    };
    let all = |byte: u8| _mm256_set1_epi8(byte.cast_signed());
    let mask = |lane| u64::from(_mm256_movemask_epi8(lane).cast_unsigned());
    let of_half = |at: usize| {
        // By halves, which the compiler sees to be one piece of memory each.
        let part = |from: usize| {
            let bytes = block[at + from..].first_chunk().copied();
            let both = u128::from_le_bytes(bytes.unwrap_or_default());
            _mm_set_epi64x((both >> 64) as i64, both as i64)
        };
        let bytes = _mm256_set_m128i(part(16), part(0));
        [
            mask(_mm256_cmpeq_epi8(bytes, all(b'"'))),
            mask(_mm256_cmpeq_epi8(bytes, all(open))),
            mask(_mm256_cmpeq_epi8(bytes, all(closing(open)))),
            mask(_mm256_cmpeq_epi8(bytes, all(b'\\'))),
        ]
    };
    let (low, high) = (of_half(0), of_half(BLOCK / 2));
    let both = |at: usize| low[at] | high[at] << (BLOCK / 2);
    // A product without carries, by ones everywhere, sums up all bits below each.
    let quotes = _mm_set_epi64x(0, both(0).cast_signed());
    let inside = _mm_clmulepi64_si128(quotes, _mm_set1_epi8(-1), 0);
    Signs {
        quotes: both(0),
        inside: _mm_cvtsi128_si64(inside).cast_unsigned(),
        opens: both(1),
        closes: both(2),
        has_escape: both(3) != 0,
    }
}

/// The same on any processor.
pub(super) fn signs(block: &[u8; BLOCK], open: u8) -> Signs {
    // Plain loops over the whole block, which the compiler turns into a few wide instructions.
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
    let quotes = bits(&quotes);
    let mut inside = quotes;
    for shift in [1, 2, 4, 8, 16, 32] {
        inside ^= inside << shift;
    }
    Signs {
        quotes,
        inside,
        opens: bits(&opens),
        closes: bits(&closes),
        has_escape: has_escape != 0,
    }
}

/// Ones and zeros in bytes, as bits.
fn bits(ones: &[u8; BLOCK]) -> u64 {
    let mut bits = 0;
    for (at, eight) in ones.as_chunks::<8>().0.iter().enumerate() {
        // The product has the lowest bit of each byte, side by side, at its top.
        let product = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080);
        bits |= (product >> 56) << (8 * at);
    }
    bits
}

/// How many bytes, in whole blocks, are only digits, commas, signs and spaces: nothing that opens or closes.
#[inline(always)]
pub(super) fn plain_prefix(bytes: &[u8]) -> usize {
    // Without a way out of the middle, so that it becomes a few instructions for all of a block.
    let is_plain = |byte: &u8| (*byte < b':') & (*byte != b'"');
    let blocks = bytes.chunks_exact(BLOCK);
    let blocks = blocks.take_while(|block| block.iter().fold(true, |all, it| all & is_plain(it)));
    blocks.count() * BLOCK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "as it is used")]
    fn wide(block: &[u8; BLOCK], open: u8) -> Option<Signs> {
        use std::arch::is_x86_feature_detected as has;
        let is_there = has!("avx2") && has!("pclmulqdq");
        // SAFETY: they are there.
        is_there.then(|| unsafe { signs_by_wide(block, open) })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn wide(_block: &[u8; BLOCK], _open: u8) -> Option<Signs> {
        None
    }

    proptest! {
        #[test]
        fn both_ways_to_look_at_a_block_see_the_same(block in prop::array::uniform32(any::<u8>()), seed in any::<u64>()) {
            let signs_of = *b"[]{}\"\\{\"";
            let mut bytes = [0; BLOCK];
            for (at, byte) in bytes.iter_mut().enumerate() {
                let is_sign = seed >> at & 1 == 1;
                *byte = if is_sign { signs_of[usize::from(block[at % 32]) % 8] } else { block[at % 32] };
            }
            for open in *b"[{" {
                if let Some(wide) = wide(&bytes, open) {
                    prop_assert_eq!(wide, signs(&bytes, open));
                }
            }
        }
    }
}
