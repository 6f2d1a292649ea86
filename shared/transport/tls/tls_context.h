// TlsContext: what the protected connections of one transport share: the settings of OpenSSL, the
// secret of the source, the fence below which no key is admitted, and the count of refusals.
//
// Only TLS 1.3 with TLS_AES_128_GCM_SHA256 and an external key with an ephemeral Diffie-Hellman
// exchange (psk_dhe_ke) is spoken. There are no certificates, no tickets and no early data.
//
// Thread: the bulk thread, except for create() and refusals().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <openssl/ssl.h>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/base/refusal_log.h"
#include "shared/transport/pair_key.h"

namespace wsync::transport::tls {

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSsl>;
using Ssl = std::unique_ptr<SSL, FreeSsl>;

// What one connection knows of its key. The owner of an Ssl keeps it at the same place until the
// Ssl is gone.
struct TlsPeer {
  // Receiver: its key. Source: that of the receiver, once it has named itself.
  std::optional<PairKey> key;
  std::string identity;  // as it travels
  // Source: why the receiver was not admitted; empty: it has named no key.
  std::string refusal;
};

class TlsContext {
 public:
  // `secret` is that of the source. kInternal if libssl lacks what is needed.
  [[nodiscard]] static Result<std::shared_ptr<TlsContext>> create(const PairSecret& secret);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // One end of a connection. The source's end waits for a receiver; that of a receiver has
  // TlsPeer::key. Both must outlive it.
  [[nodiscard]] Ssl make_source_end(TlsPeer& peer);
  [[nodiscard]] Ssl make_receiver_end(TlsPeer& peer);

  // Keys of lower fences are not admitted any more.
  void raise_fence(const StreamFence& fence);
  // Derives the key of a receiver that has named itself, or sets TlsPeer::refusal.
  void admit(TlsPeer& peer, std::string_view identity) const;

  // A connection has ended because of its peer, or of somebody between: counts it and logs it.
  void refuse(const std::string& peer_name, const std::string& why);
  // How many there were. Any thread.
  [[nodiscard]] std::uint64_t refusals() const noexcept { return refusals_; }

 private:
  explicit TlsContext(const PairSecret& secret) : secret_(secret) {}
  [[nodiscard]] Ssl make_end(SSL_CTX& context, TlsPeer& peer);

  const PairSecret secret_;
  StreamFence fence_;
  SslContext source_;
  SslContext receiver_;
  std::atomic<std::uint64_t> refusals_{0};
  RefusalLog log_;
};

// The sentence of the oldest error in OpenSSL's queue of this thread, which is emptied.
[[nodiscard]] std::string take_ssl_error();

}  // namespace wsync::transport::tls
