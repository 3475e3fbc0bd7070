use super::xts::{KEY_LEN, MasterKey, SECTOR, Xts};
use weir_base::Prng;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |d: u8| (d as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|p| value(p[0]) << 4 | value(p[1])).collect()
}

fn key(bytes: &[u8]) -> MasterKey {
    MasterKey::new(bytes.try_into().unwrap()).unwrap()
}

/// The key of IEEE 1619-2018, annex B, vectors 10 to 14: digits of e and pi.
fn standard() -> Xts {
    Xts::new(&key(&hex("2718281828459045235360287471352662497757247093699959574966967627\
         3141592653589793238462643383279502884197169399375105820974944592")))
}

fn counting() -> [u8; SECTOR] {
    std::array::from_fn(|i| i as u8)
}

fn check(number: u64, cipher: &str) {
    let (xts, plain) = (standard(), counting());
    let mut sector = plain;
    let tweak = xts.tweaks(number)[0];
    xts.encrypt(&mut sector, tweak);
    assert_eq!(sector.to_vec(), hex(cipher), "data unit {number:#x}");
    xts.decrypt(&mut sector, tweak);
    assert_eq!(sector, plain);
}

#[test]
fn vector_10_of_the_standard() {
    check(
        0xff,
        "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d66b317f9ac683f44\
         680a86ac35adfc3345befecb4bb188fd5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
         c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca2a3e7a7d7df7b10355165c8b9a6d0a7d\
         e8b062c4500dc4cd120c0f7418dae3d0b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
         93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec583e9645e07b8d9670655ba5bbcfecc6\
         dc3966380ad8fecb17b6ba02469a020a84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
         505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae9be69a2ffeceb1bec9de244fbe15992b\
         11b77c040f12bd8f6a975a44a0f90c29a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
         6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f645e8b7e9bfdef33943054ff84011493\
         c27b3429eaedb4ed5376441a77ed43851ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
         773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
    );
}

#[test]
fn vector_14_of_the_standard() {
    check(
        0xff_ffff_ffff,
        "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed2350eae7e96087c8a0db51ad290bd00c1a\
         c1620857635bf246c176ab463be30b808da548081ac847b158e1264be25bb0910bbc92647108089415d45fab1b3d2604\
         e8a8eff1ae4020cfa39936b66827b23f371b92200be90251e6d73c5f86de5fd4a950781933d79a28272b782a2ec313ef\
         dfcc0628f43d744c2dc2ff3dcb66999b50c7ca895b0c64791eeaa5f29499fb1c026f84ce5b5c72ba1083cddb5ce45434\
         631665c333b60b11593fb253c5179a2c8db813782a004856a1653011e93fb6d876c18366dd8683f53412c0c180f9c848\
         592d593f8609ca736317d356e13e2bff3a9f59cd9aeb19cd482593d8c46128bb32423b37a9adfb482b99453fbe25a41b\
         f6feb4aa0bef5ed24bf73c762978025482c13115e4015aac992e5613a3b5c2f685b84795cb6e9b2656d8c88157e52c42\
         f978d8634c43d06fea928f2822e465aa6576e9bf419384506cc3ce3c54ac1a6f67dc66f3b30191e698380bc999b05abc\
         e19dc0c6dcc2dd001ec535ba18deb2df1a101023108318c75dc98611a09dc48a0acdec676fabdf222f07e026f059b672\
         b56e5cbc8e1d21bbd867dd927212054681d70ea737134cdfce93b6f82ae22423274e58a0821cc5502e2d0ab4585e94de\
         6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
    );
}

/// As the standard defines it, a block at a time and bit by bit.
fn by_definition(key: &MasterKey, number: u64, sector: &[u8; SECTOR]) -> Vec<u8> {
    use aes::Aes256;
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
    let aes = |at: usize| Aes256::new_from_slice(&key.bytes()[at..at + 32]).unwrap();
    let (data, numbers) = (aes(0), aes(32));
    let mut tweak = Array([0; 16]);
    tweak[..8].copy_from_slice(&number.to_le_bytes());
    numbers.encrypt_block(&mut tweak);
    let mut out = Vec::new();
    for block in sector.chunks(16) {
        let mut b = Array([0; 16]);
        (0..16).for_each(|i| b[i] = block[i] ^ tweak[i]);
        data.encrypt_block(&mut b);
        out.extend((0..16).map(|i| b[i] ^ tweak[i]));
        let mut carry = 0;
        for t in tweak.iter_mut() {
            let next = *t >> 7;
            *t = *t << 1 | carry;
            carry = next;
        }
        if carry == 1 {
            tweak[0] ^= 0x87;
        }
    }
    out
}

#[test]
fn many_at_a_time_are_what_the_definition_says() {
    let mut prng = Prng::new(1619);
    for round in 0..200u64 {
        let (mut bytes, mut plain) = ([0; KEY_LEN], [0; SECTOR]);
        prng.fill(&mut bytes);
        prng.fill(&mut plain);
        let first = match round % 3 {
            0 => round,
            1 => prng.below(u64::MAX),
            _ => u64::MAX - 3,
        };
        let (k, i) = (key(&bytes), prng.below(8));
        let xts = Xts::new(&k);
        let mut sector = plain;
        xts.encrypt(&mut sector, xts.tweaks(first)[i as usize]);
        assert_eq!(sector.to_vec(), by_definition(&k, first.wrapping_add(i), &plain));
        xts.decrypt(&mut sector, xts.tweaks(first)[i as usize]);
        assert_eq!(sector, plain);
    }
}

#[test]
fn a_key_is_never_shown_and_has_two_halves() {
    let k = key(&std::array::from_fn::<u8, KEY_LEN, _>(|i| i as u8));
    assert_eq!(format!("{k:?}"), "MasterKey(..)");
    assert!(MasterKey::new(&[7; KEY_LEN]).is_none());
}
