//go:build ipsecmb

#include <stdlib.h>
#include <string.h>

#include "run.h"

IMB_MGR *culvert_manager(enum culvert_level level)
{
	IMB_MGR *m = alloc_mb_mgr(level == CULVERT_SSE ? IMB_FLAG_SHANI_OFF : 0);
	if (m == NULL)
		return NULL;
	switch (level) {
	case CULVERT_AVX512: init_mb_mgr_avx512(m); break;
	case CULVERT_AVX2: init_mb_mgr_avx2(m); break;
	case CULVERT_AVX: init_mb_mgr_avx(m); break;
	case CULVERT_SSE_SHA:
	case CULVERT_SSE: init_mb_mgr_sse(m); break;
	}
	if (imb_get_errno(m) != 0 || (level == CULVERT_SSE_SHA && !(m->features & IMB_FEATURE_SHANI))) {
		free_mb_mgr(m);
		return NULL;
	}
	return m;
}

// one_block is what the hash is after one block.
static void one_block(IMB_MGR *m, IMB_HASH_ALG hash, const uint8_t *block, uint8_t *state)
{
	switch (hash) {
	case IMB_AUTH_MD5: IMB_MD5_ONE_BLOCK(m, block, state); break;
	case IMB_AUTH_HMAC_SHA_1: IMB_SHA1_ONE_BLOCK(m, block, state); break;
	case IMB_AUTH_HMAC_SHA_256: IMB_SHA256_ONE_BLOCK(m, block, state); break;
	case IMB_AUTH_HMAC_SHA_384: IMB_SHA384_ONE_BLOCK(m, block, state); break;
	default: IMB_SHA512_ONE_BLOCK(m, block, state); break;
	}
}

// hmac_keys computes both halves of an HMAC (RFC 2104); the key is no longer than a block.
static void hmac_keys(IMB_MGR *m, culvert_session *s, const uint8_t *key, uint32_t len)
{
	int wide = s->hash == IMB_AUTH_HMAC_SHA_384 || s->hash == IMB_AUTH_HMAC_SHA_512;
	uint32_t size = wide ? 128 : 64;
	uint8_t block[128];

	memset(block, 0x36, size);
	for (uint32_t i = 0; i < len; i++)
		block[i] ^= key[i];
	one_block(m, s->hash, block, s->ipad);
	for (uint32_t i = 0; i < size; i++)
		block[i] ^= 0x36 ^ 0x5c;
	one_block(m, s->hash, block, s->opad);
	imb_clear_mem(block, sizeof(block));
}

culvert_session *culvert_new_session(IMB_MGR *m, IMB_CIPHER_MODE cipher, IMB_HASH_ALG hash,
                                     const uint8_t *enc, uint32_t enc_len, const uint8_t *auth, uint32_t auth_len)
{
	void *memory;
	if (posix_memalign(&memory, 64, sizeof(culvert_session)) != 0)
		return NULL;
	culvert_session *s = memory;
	memset(s, 0, sizeof(*s));
	s->cipher = cipher;
	s->hash = hash;
	s->key_len = enc_len;
	s->enc_keys = s->enc;
	s->dec_keys = s->dec;
	switch (cipher) {
	case IMB_CIPHER_CBC:
		s->iv_len = 16;
		if (enc_len == 16)
			IMB_AES_KEYEXP_128(m, enc, s->enc, s->dec);
		else if (enc_len == 24)
			IMB_AES_KEYEXP_192(m, enc, s->enc, s->dec);
		else
			IMB_AES_KEYEXP_256(m, enc, s->enc, s->dec);
		break;
	case IMB_CIPHER_DES3:
		s->iv_len = 8;
		for (int i = 0; i < 3; i++) {
			IMB_DES_KEYSCHED(m, s->des[i], enc + 8 * i);
			s->des_ptr[i] = s->des[i];
		}
		s->enc_keys = s->dec_keys = s->des_ptr;
		break;
	case IMB_CIPHER_GCM:
		s->iv_len = 12;
		s->aead = 1;
		if (enc_len == 16)
			IMB_AES128_GCM_PRE(m, enc, &s->gcm);
		else if (enc_len == 24)
			IMB_AES192_GCM_PRE(m, enc, &s->gcm);
		else
			IMB_AES256_GCM_PRE(m, enc, &s->gcm);
		s->enc_keys = s->dec_keys = &s->gcm;
		break;
	case IMB_CIPHER_CHACHA20_POLY1305:
		s->iv_len = 12;
		s->aead = 1;
		memcpy(s->chacha, enc, 32);
		s->enc_keys = s->dec_keys = s->chacha;
		break;
	default:
		break;
	}
	// The tags are those of IPsec, which the library truncates to; where RFC 4868's predecessor wants less, Go takes less.
	switch (hash) {
	case IMB_AUTH_MD5:
	case IMB_AUTH_HMAC_SHA_1: s->tag_len = 12; break;
	case IMB_AUTH_HMAC_SHA_384: s->tag_len = 24; break;
	case IMB_AUTH_HMAC_SHA_512: s->tag_len = 32; break;
	default: s->tag_len = 16; break;
	}
	if (!s->aead)
		hmac_keys(m, s, auth, auth_len);
	return s;
}

void culvert_free_session(culvert_session *s)
{
	imb_clear_mem(s, sizeof(*s));
	free(s);
}

static void finish(const IMB_JOB *job)
{
	((culvert_op *)job->user_data)->done = job->status == IMB_STATUS_COMPLETED;
}

void culvert_run(IMB_MGR *m, culvert_op *ops, int n, int encrypt)
{
	IMB_JOB *job;

	for (int i = 0; i < n; i++) {
		culvert_op *op = &ops[i];
		const culvert_session *s = (const culvert_session *)op->session;
		uint8_t *esp = (uint8_t *)op->esp;

		job = IMB_GET_NEXT_JOB(m);
		job->user_data = op;
		job->src = esp;
		job->dst = esp + op->cipher_off;
		job->cipher_mode = s->cipher;
		job->hash_alg = s->hash;
		job->cipher_direction = encrypt ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
		job->chain_order = encrypt ? IMB_ORDER_CIPHER_HASH : IMB_ORDER_HASH_CIPHER;
		job->enc_keys = s->enc_keys;
		job->dec_keys = s->dec_keys;
		job->key_len_in_bytes = s->key_len;
		job->cipher_start_src_offset_in_bytes = op->cipher_off;
		job->msg_len_to_cipher_in_bytes = op->cipher_len;
		job->iv_len_in_bytes = s->iv_len;
		job->auth_tag_output = op->tag;
		job->auth_tag_output_len_in_bytes = s->tag_len;
		job->sgl_state = IMB_SGL_INIT;
		if (!s->aead) {
			job->iv = esp + 8;
			job->hash_start_src_offset_in_bytes = 0;
			job->msg_len_to_hash_in_bytes = op->hash_len;
			job->u.HMAC._hashed_auth_key_xor_ipad = s->ipad;
			job->u.HMAC._hashed_auth_key_xor_opad = s->opad;
		} else {
			job->iv = op->nonce;
			job->hash_start_src_offset_in_bytes = op->cipher_off;
			job->msg_len_to_hash_in_bytes = op->cipher_len;
			if (s->cipher == IMB_CIPHER_GCM) {
				job->u.GCM.aad = op->aad;
				job->u.GCM.aad_len_in_bytes = op->aad_len;
			} else {
				job->u.CHACHA20_POLY1305.aad = op->aad;
				job->u.CHACHA20_POLY1305.aad_len_in_bytes = op->aad_len;
			}
		}
		// What is wrong with a job would be wrong here, not in a packet: lengths are checked before.
		job = IMB_SUBMIT_JOB_NOCHECK(m);
		for (; job != NULL; job = IMB_GET_COMPLETED_JOB(m))
			finish(job);
	}
	while ((job = IMB_FLUSH_JOB(m)) != NULL)
		finish(job);
}
