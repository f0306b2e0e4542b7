// What engine.go and session.go need of intel-ipsec-mb: managers, key schedules, and bursts as one call.

#ifndef CULVERT_IPSECMB_RUN_H
#define CULVERT_IPSECMB_RUN_H

#include <stdint.h>
#include <intel-ipsec-mb.h>

// level is one of the library's implementations.
enum culvert_level { CULVERT_AVX512, CULVERT_AVX2, CULVERT_AVX, CULVERT_SSE_SHA, CULVERT_SSE };

// culvert_session is the key schedules of one SA in one direction, as one level lays them out.
typedef struct {
	uint32_t enc[4 * 15] __attribute__((aligned(16)));
	uint32_t dec[4 * 15] __attribute__((aligned(16)));
	struct gcm_key_data gcm __attribute__((aligned(64)));
	uint64_t des[3][16];
	const void *des_ptr[3];
	uint8_t ipad[64] __attribute__((aligned(16)));
	uint8_t opad[64] __attribute__((aligned(16)));
	uint8_t chacha[32] __attribute__((aligned(16)));

	const void *enc_keys, *dec_keys;
	IMB_CIPHER_MODE cipher;
	IMB_HASH_ALG hash;
	uint32_t key_len, iv_len, tag_len;
	int aead;
} culvert_session;

// culvert_op is one packet. It has no pointers, so that it can lie in Go's memory: esp and session are addresses.
typedef struct {
	uintptr_t esp, session;
	uint32_t cipher_off, cipher_len, hash_len;
	uint32_t aad_len;
	uint32_t done;     // out: 1 if the library completed the job
	uint32_t index;    // Go's: which job of the burst this is
	uint8_t aad[16];   // AEADs: what is authenticated only
	uint8_t nonce[16]; // AEADs: salt and IV
	uint8_t saved[4];  // Go's: what the high half of an ESN overwrote
	uint8_t tag[64] __attribute__((aligned(8))); // out
} culvert_op;

// culvert_manager makes a manager of a level; NULL if this machine does not run it.
IMB_MGR *culvert_manager(enum culvert_level level);

// culvert_new_session expands the keys with a manager of the level that will use them; NULL without memory. enc is without salt.
culvert_session *culvert_new_session(IMB_MGR *m, IMB_CIPHER_MODE cipher, IMB_HASH_ALG hash,
                                     const uint8_t *enc, uint32_t enc_len, const uint8_t *auth, uint32_t auth_len);

// culvert_free_session wipes and frees.
void culvert_free_session(culvert_session *s);

// culvert_run finishes n packets of one direction.
void culvert_run(IMB_MGR *m, culvert_op *ops, int n, int encrypt);

#endif
