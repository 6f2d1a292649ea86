#include "shared/transport/tls/tls_context.h"

#include <algorithm>
#include <array>
#include <openssl/err.h>
#include <string_view>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::transport::tls {
namespace {

constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteId{0x13, 0x01};

struct FreeSession {
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
};

TlsPeer& peer_of(SSL* ssl) { return *static_cast<TlsPeer*>(SSL_get_app_data(ssl)); }

// How OpenSSL takes an external key: as a session that was never held. Null if it refuses.
SSL_SESSION* session_of(SSL* ssl, const PairKey& key) {
  std::unique_ptr<SSL_SESSION, FreeSession> session(SSL_SESSION_new());
  const SSL_CIPHER* suite = SSL_CIPHER_find(ssl, kSuiteId.data());
  const bool made = session && suite != nullptr &&
                    SSL_SESSION_set1_master_key(
                        session.get(), reinterpret_cast<const unsigned char*>(key.secret.data()),
                        key.secret.size()) == 1 &&
                    SSL_SESSION_set_cipher(session.get(), suite) == 1 &&
                    SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? session.release() : nullptr;
}

// The source: a receiver names its key. Without a session OpenSSL goes on to certificates, which a
// source has none of, so the handshake fails.
int find_session(SSL* ssl, const unsigned char* identity, std::size_t bytes, SSL_SESSION** found) {
  *found = nullptr;
  TlsPeer& peer = peer_of(ssl);
  const auto* context = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  context->admit(peer, {reinterpret_cast<const char*>(identity), bytes});
  if (!peer.key) return 1;
  *found = session_of(ssl, *peer.key);
  return *found != nullptr ? 1 : 0;
}

// The receiver names its key. `digest` is null at first, and that of the suite in a second round.
int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* bytes,
                SSL_SESSION** used) {
  *used = nullptr;
  TlsPeer& peer = peer_of(ssl);
  if (!peer.key || (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256)) return 0;
  *used = session_of(ssl, *peer.key);
  *identity = reinterpret_cast<const unsigned char*>(peer.identity.data());
  *bytes = peer.identity.size();
  return *used != nullptr ? 1 : 0;
}

SslContext make_context(const SSL_METHOD* method, TlsContext& owner) {
  SslContext context(SSL_CTX_new(method));
  if (!context) return nullptr;
  SSL_CTX_set_app_data(context.get(), &owner);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  const bool is_set = SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(context.get(), kSuite) == 1 &&
                      SSL_CTX_set_num_tickets(context.get(), 0) == 1 &&
                      SSL_CTX_set_max_early_data(context.get(), 0) == 1 &&
                      SSL_CTX_set_recv_max_early_data(context.get(), 0) == 1;
  return is_set ? std::move(context) : nullptr;
}

}  // namespace

std::string take_ssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : fmt::format("error {:x} of OpenSSL", code);
}

Result<std::shared_ptr<TlsContext>> TlsContext::create(const PairSecret& secret) {
  // The application may use OpenSSL as well: what this process does at its end, and the file of
  // settings of the system, are not for this library to decide.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  const std::shared_ptr<TlsContext> context(new TlsContext(secret));
  context->source_ = make_context(TLS_server_method(), *context);
  context->receiver_ = make_context(TLS_client_method(), *context);
  if (!context->source_ || !context->receiver_)
    return fail(ErrorCode::kInternal,
                fmt::format("libssl of this host cannot speak TLS 1.3 with {}: {}", kSuite,
                            take_ssl_error()));
  SSL_CTX_set_psk_find_session_callback(context->source_.get(), find_session);
  // A receiver that is sent a certificate has nothing to check it with, and ends the handshake.
  SSL_CTX_set_verify(context->receiver_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_psk_use_session_callback(context->receiver_.get(), use_session);
  return context;
}

Ssl TlsContext::make_end(SSL_CTX& context, TlsPeer& peer) {
  Ssl ssl(SSL_new(&context));
  WSYNC_CHECK(ssl != nullptr, "a connection can be made of a complete context");
  SSL_set_app_data(ssl.get(), &peer);
  return ssl;
}

Ssl TlsContext::make_source_end(TlsPeer& peer) {
  Ssl ssl = make_end(*source_, peer);
  SSL_set_accept_state(ssl.get());
  return ssl;
}

Ssl TlsContext::make_receiver_end(TlsPeer& peer) {
  WSYNC_CHECK(peer.key.has_value(), "a receiver has a key");
  peer.identity = to_text(peer.key->identity);
  Ssl ssl = make_end(*receiver_, peer);
  SSL_set_connect_state(ssl.get());
  return ssl;
}

void TlsContext::raise_fence(const StreamFence& fence) {
  if (!planted("data_key_of_an_old_fence")) fence_ = std::max(fence_, fence);
}

void TlsContext::admit(TlsPeer& peer, std::string_view identity) const {
  auto named = parse_pair_identity(identity);
  if (!named) {
    peer.refusal = "what it calls its key is none of this fleet";
  } else if (named->fence < fence_) {
    peer.refusal = fmt::format("its key is of fence epoch {}, and that of {} is in force",
                               named->fence.epoch, fence_.epoch);
  } else {
    peer.identity = identity;
    peer.key = derive_pair_key(secret_, std::move(*named));
  }
}

void TlsContext::refuse(const std::string& peer_name, const std::string& why) {
  if (!planted("data_refusal_not_counted")) ++refusals_;
  log_.add(fmt::format("a data connection with {} was ended: {}", peer_name, why));
}

}  // namespace wsync::transport::tls
