//! DNS packets: parses a query with one question and builds its response. Pure: no I/O, no recursion.

use std::net::Ipv4Addr;

use rollcage_model::network::Host;

/// Short, because a synthetic address is given up when its name is evicted.
const TTL_S: u32 = 30;
/// The usual limit for DNS over UDP. A longer query carries something else.
const QUESTION_BYTES_MAX: usize = 1232;
const HEADER_BYTES: usize = 12;
const NAME_BYTES_MAX: usize = 255;

const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;

const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_RECURSION_WANTED: u16 = 0x0100;
const FLAG_RECURSION_OFFERED: u16 = 0x0080;
const OPCODE: u16 = 0x7800;

const NO_ERROR: u16 = 0;
const FORMAT_ERROR: u16 = 1;
const NO_SUCH_NAME: u16 = 3;
const NOT_IMPLEMENTED: u16 = 4;

/// A parsed packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Question(Question),
    /// Too short or itself a response: not answered.
    Noise,
    /// Malformed or unsupported; the error response.
    Wrong(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    id: u16,
    flags: u16,
    /// Verbatim, since resolvers compare the case of letters too (0x20 encoding).
    question: Vec<u8>,
    /// Lower case; may hold characters that no host name has.
    pub(crate) name: String,
    kind: u16,
}

/// The result for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Unknown,
    Address(Ipv4Addr),
}

pub(crate) fn read(packet: &[u8]) -> Packet {
    let word = |at: usize| {
        let bytes = packet.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let (Some(id), Some(flags), Some(questions), true) =
        (word(0), word(2), word(4), packet.len() >= HEADER_BYTES)
    else {
        return Packet::Noise;
    };
    if flags & FLAG_RESPONSE != 0 {
        return Packet::Noise;
    }
    let wrong = |code| Packet::Wrong(header(id, flags, code, 0, 0).to_vec());
    if flags & OPCODE != 0 {
        return wrong(NOT_IMPLEMENTED);
    }
    if questions != 1 || packet.len() > QUESTION_BYTES_MAX {
        return wrong(FORMAT_ERROR);
    }
    let Some((name, end)) = read_name(packet, HEADER_BYTES) else {
        return wrong(FORMAT_ERROR);
    };
    match (word(end), word(end + 2)) {
        (Some(kind), Some(CLASS_IN)) => Packet::Question(Question {
            id,
            flags,
            question: packet[HEADER_BYTES..end + 4].to_vec(),
            name,
            kind,
        }),
        (Some(_), Some(_)) => wrong(NOT_IMPLEMENTED),
        _ => wrong(FORMAT_ERROR),
    }
}

/// A name and the offset behind it. Compression is an error here: before the question there is no name to point to.
fn read_name(packet: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = start;
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > 63 || at + length - start > NAME_BYTES_MAX {
            return None;
        }
        let label = packet.get(at..at + length)?;
        at += length;
        if !name.is_empty() {
            name.push('.');
        }
        // Bytes that are invalid in host names must stay invalid; above all a dot inside a label.
        let plain = |byte: &u8| match *byte {
            b'.' => '\u{fffd}',
            byte if byte.is_ascii_graphic() => char::from(byte.to_ascii_lowercase()),
            _ => '\u{fffd}',
        };
        name.extend(label.iter().map(plain));
    }
}

impl Question {
    /// The name, if it is a valid host name and not `localhost`.
    pub(crate) fn host_name(&self) -> Option<&str> {
        let mut labels = self.name.rsplit('.');
        let is_here = labels.next() == Some("localhost");
        match Host::parse(&self.name)? {
            Host::Name(name) => (name == self.name && !is_here).then_some(&self.name),
            Host::Ip(_) => None,
        }
    }

    /// Whether this is a query for A records. All other types have none here.
    pub(crate) fn wants_address(&self) -> bool {
        self.kind == TYPE_A
    }

    pub(crate) fn answer(&self, answer: Answer) -> Vec<u8> {
        let address = match answer {
            Answer::Address(address) if self.wants_address() => Some(address),
            Answer::Address(_) | Answer::Unknown => None,
        };
        let code = match answer {
            Answer::Address(_) => NO_ERROR,
            Answer::Unknown => NO_SUCH_NAME,
        };
        let answers = u16::from(address.is_some());
        let mut packet = header(self.id, self.flags, code, 1, answers).to_vec();
        packet.extend_from_slice(&self.question);
        if let Some(address) = address {
            // A compression pointer to the name in the question.
            packet.extend_from_slice(&[0xc0, HEADER_BYTES as u8]);
            packet.extend_from_slice(&TYPE_A.to_be_bytes());
            packet.extend_from_slice(&CLASS_IN.to_be_bytes());
            packet.extend_from_slice(&TTL_S.to_be_bytes());
            packet.extend_from_slice(&4u16.to_be_bytes());
            packet.extend_from_slice(&address.octets());
        }
        packet
    }
}

fn header(id: u16, flags: u16, code: u16, questions: u16, answers: u16) -> [u8; HEADER_BYTES] {
    let kept = flags & (OPCODE | FLAG_RECURSION_WANTED);
    let flags = FLAG_RESPONSE | FLAG_RECURSION_OFFERED | kept | code;
    let mut header = [0; HEADER_BYTES];
    for (place, word) in header.chunks_mut(2).zip([id, flags, questions, answers]) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(name: &[&str], kind: u16) -> Vec<u8> {
        let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name {
            packet.push(u8::try_from(label.len()).unwrap());
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&kind.to_be_bytes());
        packet.extend_from_slice(&CLASS_IN.to_be_bytes());
        packet
    }

    fn question(name: &[&str], kind: u16) -> Question {
        match read(&packet(name, kind)) {
            Packet::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_code(packet: &[u8], code: u8) {
        match read(packet) {
            Packet::Wrong(answer) => assert_eq!((answer.len(), answer[3] & 15), (12, code)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_address_is_told_in_the_letters_of_the_question() {
        let question = question(&["PyPI", "org"], TYPE_A);
        assert_eq!(question.host_name(), Some("pypi.org"));
        let answer = question.answer(Answer::Address(Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(
            answer,
            b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0\x04PyPI\x03org\0\0\x01\0\x01\
              \xc0\x0c\0\x01\0\x01\0\0\0\x1e\0\x04\xc6\x12\0\x01"
        );
    }

    #[test]
    fn other_types_of_a_known_name_are_empty_and_unknown_names_do_not_exist() {
        for kind in [2, 5, 12, 16, 28, 33, 65, 255] {
            let question = question(&["pypi", "org"], kind);
            let known = question.answer(Answer::Address(Ipv4Addr::new(198, 18, 0, 1)));
            assert_eq!((known[3] & 15, known[7]), (0, 0), "{kind}");
            let unknown = question.answer(Answer::Unknown);
            assert_eq!((unknown[3] & 15, unknown[7]), (3, 0), "{kind}");
        }
    }

    #[test]
    fn odd_names_are_no_hosts() {
        for name in [
            &["a.b", "org"][..],
            &["a b"],
            &[],
            &["127", "1"],
            &["1"],
            &["localhost"],
            &["a", "localhost"],
            &["\u{e9}"],
        ] {
            assert_eq!(question(name, TYPE_A).host_name(), None, "{name:?}");
        }
    }

    #[test]
    fn what_is_malformed_is_told_so_or_nothing() {
        assert_eq!(read(&[]), Packet::Noise);
        assert_eq!(read(&packet(&["a"], 1)[..11]), Packet::Noise);
        let mut response = packet(&["a"], 1);
        response[2] |= 0x80;
        assert_eq!(read(&response), Packet::Noise);
        let mut two = packet(&["a"], 1);
        two[5] = 2;
        check_code(&two, 1);
        let mut update = packet(&["a"], 1);
        update[2] = 5 << 3;
        check_code(&update, 4);
        let mut chaos = packet(&["version", "bind"], 16);
        *chaos.last_mut().unwrap() = 3;
        check_code(&chaos, 4);
        check_code(&packet(&["a"], 1)[..15], 1);
        // A name that refers to itself.
        let mut circle = packet(&[], 1);
        circle.splice(12..13, [0xc0, 12]);
        check_code(&circle, 1);
        let long = vec!["abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"; 5];
        check_code(&packet(&long, 1), 1);
        let mut huge = packet(&["a"], 1);
        huge.resize(65_507, 0);
        check_code(&huge, 1);
    }

    proptest! {
        #[test]
        fn no_packet_breaks_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Packet::Question(question) = read(&bytes) {
                prop_assert!(question.answer(Answer::Unknown).len() <= bytes.len());
            }
        }

        #[test]
        fn no_name_breaks_the_reader(tail in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = packet(&["pypi"], 1)[..17].to_vec();
            bytes.extend(tail);
            if let Packet::Question(question) = read(&bytes) {
                prop_assert!(question.name.starts_with("pypi"));
            }
        }
    }
}
