#!/usr/bin/env python3
"""Makes the known answers of package offload: published.json and computed.json, beside this file.

Nothing here shares code with the Go engines: HMACs are Python's hmac and hashlib, ciphers are OpenSSL's through the
"cryptography" package (48.0 was used). Published ciphertexts and tags are literals below, with where they stand; the script
stops if OpenSSL disagrees with one. Where a publication has the ciphertext only, the ICV around it is computed here, and the
source says so.

An answer:
  transform  Transform.ID()
  source     where it comes from
  enc, auth  keys, hex; enc includes an AEAD's salt
  esn        the sequence number has 64 bits; seq_hi is its high half
  plain      SPI, sequence number, IV, payload, trailer, hex; or instead
  head, len  SPI, sequence number, IV, hex, and how many bytes of payload follow: byte i is (31 i + 17 (i >> 8) + 7) mod 256,
             then come pad bytes 1, 2, 3 ..., the pad length, and next header 4
  sealed     the whole packet, hex; or instead
  digest     its SHA-256, hex, where the packet is long

Usage: make.py rfc3602_esp.json
"""
import hashlib
import hmac
import json
import os
import sys

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES

HERE = os.path.dirname(os.path.abspath(__file__))
MACS = [("md5", 96), ("sha1", 96), ("sha256", 128), ("sha256", 96), ("sha384", 192), ("sha512", 256)]
AES_NAME, DES_NAME, NULL_NAME = "cbc(aes)", "cbc(des3_ede)", "ecb(cipher_null)"
GCM, CHACHA = "rfc4106(gcm(aes))", "rfc7539esp(chacha20,poly1305)"
BLOCK = {AES_NAME: 16, DES_NAME: 8, NULL_NAME: 4, GCM: 4, CHACHA: 4}
IV = {AES_NAME: 16, DES_NAME: 8, NULL_NAME: 0, GCM: 8, CHACHA: 8}


def stream(label, n):
    """n bytes that look random and depend on the label only: keys, IVs, SPIs."""
    out, i = b"", 0
    while len(out) < n:
        out += hashlib.sha256(b"%s %d" % (label.encode(), i)).digest()
        i += 1
    return out[:n]


def cbc(name, key, iv, text, encrypt=True):
    if name == NULL_NAME:
        return text
    c = Cipher(AES(key) if name == AES_NAME else TripleDES(key), modes.CBC(iv))
    op = c.encryptor() if encrypt else c.decryptor()
    return op.update(text) + op.finalize()


def seal_authenc(h, bits, name, enc, auth, plain, seq_hi):
    iv = plain[8:8 + IV[name]]
    packet = plain[:8 + len(iv)] + cbc(name, enc, iv, plain[8 + len(iv):])
    unsent = b"" if seq_hi is None else seq_hi.to_bytes(4, "big")
    return packet + hmac.new(auth, packet + unsent, h).digest()[:bits // 8]


def seal_aead(name, enc, plain, seq_hi):
    key, salt = enc[:-4], enc[-4:]
    aead = AESGCM(key) if name == GCM else ChaCha20Poly1305(key)
    aad = plain[:8] if seq_hi is None else plain[:4] + seq_hi.to_bytes(4, "big") + plain[4:8]
    return plain[:16] + aead.encrypt(salt + plain[8:16], plain[16:], aad)


def answer(tid, source, enc, auth, seq_hi, sealed, plain=None, head=None, length=None):
    a = {"transform": tid, "source": source, "enc": enc.hex()}
    if auth:
        a["auth"] = auth.hex()
    if seq_hi is not None:
        a["esn"], a["seq_hi"] = True, seq_hi
    if plain is not None:
        a["plain"] = plain.hex()
    else:
        a["head"], a["len"] = head.hex(), length
    if len(sealed) > 512:
        a["digest"] = hashlib.sha256(sealed).hexdigest()
    else:
        a["sealed"] = sealed.hex()
    return a


def authenc_id(h, bits, name, key):
    return "authenc(hmac(%s),%s)/%d/%d" % (h, name, len(key) * 8, bits)


# --- computed ---------------------------------------------------------------------------------------------------------

def rows():
    for name, sizes in ((AES_NAME, (16, 24, 32)), (DES_NAME, (24,)), (NULL_NAME, (0,))):
        for h, bits in MACS:
            for size in sizes:
                yield name, h, bits, size
    for size in (16, 24, 32):
        yield GCM, None, 128, size
    yield CHACHA, None, 128, 32


def computed():
    out = []
    for name, h, bits, size in rows():
        tid = authenc_id(h, bits, name, b"k" * size) if h else "%s/%d/128" % (name, size * 8)
        enc = stream(tid + " enc", size + (0 if h else 4))
        auth = stream(tid + " auth", hashlib.new(h).digest_size) if h else b""
        for length, seq_hi in ((0, None), (40, 1), (333, 0x89abcdef), (1400, None)):
            label = "%s %d" % (tid, length)
            head = stream(label, 8 + IV[name])
            payload = bytes((31 * i + 17 * (i >> 8) + 7) & 255 for i in range(length))
            pad = -(length + 2) % BLOCK[name]
            plain = head + payload + bytes(range(1, pad + 1)) + bytes((pad, 4))
            if h:
                sealed = seal_authenc(h, bits, name, enc, auth, plain, seq_hi)
            else:
                sealed = seal_aead(name, enc, plain, seq_hi)
            out.append(answer(tid, "computed by answers/make.py", enc, auth, seq_hi, sealed, head=head, length=length))
    return out


# --- published --------------------------------------------------------------------------------------------------------

# What Encapsulating Security Payload with null encryption looks like to an HMAC is just its input, so that an HMAC vector
# whose text is a multiple of 4 bytes, at least 12, and whose key is as long as the hash, is a whole packet.
HMACS = [
    ("RFC 2202 section 2 case 5", "md5", 96, b"\x0c" * 16, b"Test With Truncation", "56461ef2342edc00f9bab995"),
    ("RFC 2202 section 3 case 5", "sha1", 96, b"\x0c" * 20, b"Test With Truncation", "4c1a03424b55e07fe7f27be1"),
    ("RFC 4868 AUTH256-2", "sha256", 128, b"Jefe" * 8, b"what do ya want for nothing?",
     "167f928588c5cc2eef8e3093caa0e87c"),
    ("RFC 4868 AUTH256-2, truncated to 96 bits", "sha256", 96, b"Jefe" * 8, b"what do ya want for nothing?",
     "167f928588c5cc2eef8e3093"),
    ("RFC 4868 AUTH384-2", "sha384", 192, b"Jefe" * 12, b"what do ya want for nothing?",
     "2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d"),
    ("RFC 4868 AUTH512-2", "sha512", 256, b"Jefe" * 16, b"what do ya want for nothing?",
     "cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454"),
]

# CBC ciphertexts: source, cipher, key, IV, plaintext, ciphertext.
SP800_38A = ("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
             "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710")
CBCS = [
    ("NIST SP 800-38A F.2.3", AES_NAME, "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
     "000102030405060708090a0b0c0d0e0f", SP800_38A,
     "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a"
     "571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd"),
    ("NIST SP 800-38A F.2.5", AES_NAME, "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
     "000102030405060708090a0b0c0d0e0f", SP800_38A,
     "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
     "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b"),
    ("NIST CAVP TCBCMMT3 encrypt 9", DES_NAME, "9b162a0df8ad9b61c88676e3d586434570b902f12a2046e0", "ebd6fefe029ad54b",
     "f4c1c918e77355c8156f0fd778da52bff121ae5f2f44eaf4d2754946d0e10d1f"
     "18ce3a0176e69c18b7d20b6e0d0bee5eb5edfe4bd60e4d92adcd86bce72e76f94ee5cbcaa8b01cfddcea2ade575e66ac",
     "1ff3c8709f403a8eff291aedf50c010df5c5ff64a8b205f1fce68564798897a3"
     "90db16ee0d053856b75898009731da290fcc119dad987277aacef694872e880c4bb41471063fae05c89f25e4bd0cad6a"),
]

# Whole AEAD packets: source, name, key, nonce (salt and IV), additional data, plaintext, ciphertext, tag.
DRAFT = "draft-mcgrew-gcm-test-01 "
AEADS = [
    (DRAFT + "case 1", GCM, "4c80cdefbb5d10da906ac73c3613a634", "2e443b684956ed7e3b244cfe", "000043218765432100000000",
     "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f756470037369700963796265726369"
     "747902646b000021000101020201",
     "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247ae"
     "abb786b93bce61bc17d768fd9732", "459018148f6cbe722fd04796562dfdb4"),
    (DRAFT + "case 2", GCM, "feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888", "0000a5f80000000a",
     "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d001000001000000000000037369700963796265726369747902646b00"
     "000100010001",
     "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b"
     "9ba95d918bd1", "83b70d3aa8bc6ee4c309e9d85a41ad4a"),
    (DRAFT + "case 3", GCM, "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
     "112233440102030405060708", "4a2cbfe300000002",
     "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b40101040201020201",
     "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99def842d8e",
     "b335f4eecfdbf831824b4c4915956c96"),
    (DRAFT + "case 6", GCM, "3de09874b388e6491988d0c3607eae1f", "57690e434e280000a2fca1a3", "42f67e3f1010101010101010",
     "4500001c42a200008001441f406793b6e00000020a00f5ff01020201",
     "fba2ca845e5df9f0f22c3e6e86dd831e1fc65792cd1af9130e1379ed", "369f071f35e034be95f112e4e7d05d35"),
    (DRAFT + "case 7", GCM, "feffe9928665731c6d6a8f9467308308feffe9928665731c", "cafebabefacedbaddecaf888",
     "0000a5f80000000a",
     "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e501016d075680001",
     "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0315b27452144cc77",
     "95457b9652037f5318027b5b4cd7a636"),
    (DRAFT + "case 12", GCM, "7d773d00c144c525ac619d18c84a3f47", "d966426743457e9182443bc6", "335467aeffffffff",
     "01020201", "437f866b", "cb3f699fe9b0822bac961c4504bef270"),
    (DRAFT + "case 14", GCM, "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961",
     "7475726e333021696765746d", "796b6963ffffffffffffffff",
     "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
     "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a864cd3d78ca4ae68a32b42458fb57dbe821dcc63b9",
     "d0937ba2945f669368661a329fb4c053"),
    ("RFC 7634 appendix A", CHACHA, "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
     "a0a1a2a31011121314151617", "0102030400000005",
     "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f101112131415161718191a1b1c1d"
     "1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
     "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe"
     "2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0", "76aaa8266b7fb0f7b11b369907e1ad43"),
]


def with_icv(source, name, key, packet):
    """One answer per HMAC for a packet whose ciphertext is published and whose ICV is not."""
    for h, bits in MACS:
        auth = stream("%s %s %d auth" % (source, h, bits), hashlib.new(h).digest_size)
        n = 8 + IV[name]
        plain = packet[:n] + cbc(name, key, packet[8:n], packet[n:], encrypt=False)
        sealed = seal_authenc(h, bits, name, key, auth, plain, None)
        assert sealed[:-bits // 8] == packet, source
        yield answer(authenc_id(h, bits, name, key), source + "; ICV computed by answers/make.py", key, auth, None, sealed, plain)


def published(rfc3602):
    out = []
    for source, h, bits, key, text, icv in HMACS:
        sealed = seal_authenc(h, bits, NULL_NAME, b"", key, text, None)
        assert sealed == text + bytes.fromhex(icv), source
        out.append(answer(authenc_id(h, bits, NULL_NAME, b""), source, b"", key, None, sealed, text))
    for p in rfc3602:
        out += with_icv("RFC 3602 case %d" % p["case"], AES_NAME, bytes.fromhex(p["key"]), bytes.fromhex(p["esp"]))
    for source, name, key, iv, text, ciphertext in CBCS:
        key, iv, text, ciphertext = map(bytes.fromhex, (key, iv, text, ciphertext))
        assert cbc(name, key, iv, text) == ciphertext, source
        out += with_icv(source, name, key, stream(source, 8) + iv + ciphertext)
    for source, name, key, nonce, aad, text, ciphertext, tag in AEADS:
        key, nonce, aad, text, ciphertext, tag = map(bytes.fromhex, (key, nonce, aad, text, ciphertext, tag))
        seq_hi = int.from_bytes(aad[4:8], "big") if len(aad) == 12 else None
        plain = aad[:4] + aad[-4:] + nonce[4:] + text
        enc = key + nonce[:4]
        sealed = seal_aead(name, enc, plain, seq_hi)
        assert sealed == plain[:16] + ciphertext + tag, source
        out.append(answer("%s/%d/128" % (name, len(key) * 8), source, enc, b"", seq_hi, sealed, plain))
    return out


def write(name, answers):
    with open(os.path.join(HERE, name), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(a) for a in answers) + "\n]\n")
    print(name, len(answers), "answers")


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        write("published.json", published(json.load(f)))
    write("computed.json", computed())
