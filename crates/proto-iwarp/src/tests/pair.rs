use crate::fuzzing::{Choices, Message, Script, drive, fuzz_mpa, fuzz_stream};
use crate::tests::hex;
use proptest::prelude::*;
use weir_base::Prng;

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { cases: n, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn any_chopping_reproduces_the_operations(
        choices in prop::collection::vec(any::<u8>(), 0..300),
        crc: bool,
        seed: u64,
    ) {
        let script = Script::build(&mut Choices::new(&choices, 180_000), crc);
        let mut prng = Prng::new(seed);
        for prng in [None, Some(&mut prng)] {
            let got = drive(&script.bytes, crc, prng);
            prop_assert_eq!(got.fault, None);
            prop_assert_eq!(got.unread, 0);
            prop_assert!(got.messages == script.messages);
        }
    }

    #[test]
    fn a_flipped_bit_is_never_delivered_with_crc(
        choices in prop::collection::vec(any::<u8>(), 1..100),
        seed: u64,
    ) {
        let script = Script::build(&mut Choices::new(&choices, 180_000), true);
        prop_assume!(!script.bytes.is_empty());
        let mut prng = Prng::new(seed);
        for _ in 0..8 {
            let mut bytes = script.bytes.clone();
            let bit = prng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let got = drive(&bytes, true, Some(&mut prng));
            // Every bit is covered, so the stream ends in a fault or waits for bytes that a
            // changed length announced. What was completed before is as it was sent.
            prop_assert!(got.fault.is_some() || got.unread > 0 || got.messages.len() < script.messages.len());
            prop_assert!(got.messages[..] == script.messages[..got.messages.len()]);
        }
    }

    #[test]
    fn a_cut_stream_is_a_prefix(
        choices in prop::collection::vec(any::<u8>(), 1..100),
        crc: bool,
        seed: u64,
    ) {
        let script = Script::build(&mut Choices::new(&choices, 180_000), crc);
        let mut prng = Prng::new(seed);
        let cut = prng.below(script.bytes.len() as u64 + 1) as usize;
        let got = drive(&script.bytes[..cut], crc, Some(&mut prng));
        prop_assert_eq!(got.fault, None);
        prop_assert!(got.messages[..] == script.messages[..got.messages.len()]);
    }

    #[test]
    fn any_bytes_keep_the_promises(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        fuzz_stream(&data);
        fuzz_mpa(&data);
    }

    #[test]
    fn nearly_valid_bytes_keep_the_promises(
        choices in prop::collection::vec(any::<u8>(), 1..60),
        crc: bool,
        seed: u64,
        flips in 0usize..6,
    ) {
        // Wire bytes of a valid script with some header-like bytes replaced, CRC unchecked.
        let mut bytes = Script::build(&mut Choices::new(&choices, 180_000), crc).bytes;
        let mut prng = Prng::new(seed);
        for _ in 0..flips.min(bytes.len()) {
            let at = prng.below(bytes.len() as u64) as usize;
            bytes[at] = [0, 1, 0x41, 0x81, 0xc1, 0xff, prng.next_u64() as u8][prng.below(7) as usize];
        }
        bytes.insert(0, u8::from(crc) | 0x80);
        fuzz_stream(&bytes);
    }
}

/// Every single bit of a stream that has segments in parts and whole, one after the other.
#[test]
fn every_flipped_bit_is_found() {
    let mut prng = Prng::new(5);
    let script = loop {
        let mut choices = [0; 40];
        prng.fill(&mut choices);
        let s = Script::build(&mut Choices::new(&choices, 180_000), true);
        if s.messages.len() >= 5 && (2500..5000).contains(&s.bytes.len()) {
            break s;
        }
    };
    for bit in 0..script.bytes.len() * 8 {
        let mut bytes = script.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for prng in [None, Some(&mut prng)] {
            let got = drive(&bytes, true, prng);
            assert!(got.messages.len() < script.messages.len(), "bit {bit} went unnoticed");
            assert_eq!(got.messages[..], script.messages[..got.messages.len()]);
        }
    }
}

/// The kernel's Read Response to a 64 KiB READ: many FPDUs of 1448 bytes and one tail, unaligned
/// to anything, received in one piece and byte by byte.
#[test]
fn a_response_in_many_fpdus_is_one_message() {
    let data: Vec<u8> = (0..65536u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut stream = Vec::new();
    for (i, part) in data.chunks(1424).enumerate() {
        let at = i * 1424;
        let last = at + part.len() == data.len();
        let h = crate::tx::tagged_header(crate::Op::ReadResponse, 9, at as u64, part.len(), last);
        let mut sum = crate::tx::FpduCrc::new(&h);
        sum.update(part);
        let (t, n) = sum.trailer(h.len() - 2 + part.len());
        stream.extend_from_slice(&h);
        stream.extend_from_slice(part);
        stream.extend_from_slice(&t[..n]);
    }
    let whole = drive(&stream, true, None);
    assert_eq!(whole.messages.len(), 1);
    assert!(matches!(&whole.messages[0], Message::Data { data: d, .. } if *d == data));
    let mut prng = Prng::new(1);
    assert_eq!(drive(&stream, true, Some(&mut prng)).messages, whole.messages);
}

#[test]
fn hex_reads_what_it_says() {
    assert_eq!(hex("00 16 ff4A"), [0, 0x16, 0xff, 0x4a]);
}
