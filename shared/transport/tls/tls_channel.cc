#include "shared/transport/tls/tls_channel.h"

#include <algorithm>
#include <cstring>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/transport/limits.h"

namespace wsync::transport::tls {
namespace {

// What is encrypted before it is sent, and what is decrypted at once: enough for a turn of the loop
// at each end, and not more than the second cache of a core. A source keeps two such buffers for
// each connection, and a receiver one.
constexpr std::size_t kBatchBytes = 256 * limits::kKiB;
constexpr std::size_t kRequestsBatchBytes = 20 * limits::kKiB;  // a source reads requests only
constexpr std::size_t kRecordBytes = 16 * limits::kKiB;

}  // namespace

TlsChannel::TlsChannel(std::shared_ptr<TlsContext> context, std::optional<PairKey> key,
                       std::uint64_t key_bytes)
    : context_(std::move(context)), key_bytes_(key_bytes), is_source_(!key) {
  peer_.key = std::move(key);
  encrypted_in_.resize(is_source_ ? kRequestsBatchBytes : kBatchBytes);
}

// ---- what OpenSSL reads and writes ----

BIO_METHOD* TlsChannel::memory_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "wsync channel");
    WSYNC_CHECK(made != nullptr && BIO_meth_set_read(made, read_encrypted) == 1 &&
                    BIO_meth_set_write(made, write_encrypted) == 1 &&
                    BIO_meth_set_ctrl(made, control) == 1,
                "a method of three functions can be made");
    return made;
  }();
  return method;
}

int TlsChannel::read_encrypted(BIO* bio, char* out, int bytes) {
  auto* self = static_cast<TlsChannel*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self->unread_.empty()) {
    BIO_set_retry_read(bio);
    return -1;
  }
  const std::size_t n = std::min(self->unread_.size(), static_cast<std::size_t>(bytes));
  std::memcpy(out, self->unread_.data(), n);
  self->unread_ = self->unread_.subspan(n);
  return static_cast<int>(n);
}

int TlsChannel::write_encrypted(BIO* bio, const char* from, int bytes) {
  auto* self = static_cast<TlsChannel*>(BIO_get_data(bio));
  const auto more = std::as_bytes(std::span(from, static_cast<std::size_t>(bytes)));
  self->encrypted_out_.insert(self->encrypted_out_.end(), more.begin(), more.end());
  return bytes;
}

long TlsChannel::control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// ---- the connection ----

void TlsChannel::connected() {
  ssl_ = is_source_ ? context_->make_source_end(peer_) : context_->make_receiver_end(peer_);
  BIO* bio = BIO_new(memory_method());
  WSYNC_CHECK(bio != nullptr, "a BIO can be made");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);  // which owns it now
  if (!is_source_) (void)shake_hands();
}

void TlsChannel::arrived(std::size_t bytes) {
  unread_ = std::span(encrypted_in_).first(bytes);
  if (is_open_ || shake_hands()) read_all();
}

bool TlsChannel::shake_hands() {
  ERR_clear_error();
  const int rc = SSL_do_handshake(ssl_.get());
  if (rc != 1 && SSL_get_error(ssl_.get(), rc) != SSL_ERROR_WANT_READ) {
    refuse();
    return false;
  }
  flush();
  if (rc != 1 || is_closing()) return false;
  // The certificates of nobody are trusted, so only a key can have led here.
  WSYNC_CHECK(SSL_session_reused(ssl_.get()) == 1, "a handshake without a key fails");
  is_open_ = true;
  events().on_open();
  return !is_closing();
}

void TlsChannel::read_all() {
  while (!is_closing()) {
    const std::span<std::byte> next = events().next();
    std::size_t n = 0;
    ERR_clear_error();
    const int rc = SSL_read_ex(ssl_.get(), next.data(), next.size(), &n);
    if (rc == 1) {
      events().on_read(n);
      continue;
    }
    if (SSL_get_error(ssl_.get(), rc) != SSL_ERROR_WANT_READ) return refuse();
    return flush();
  }
}

void TlsChannel::refuse() {
  std::string why = take_ssl_error();
  if (is_source_ && !is_open_)
    why = fmt::format("it did not prove a key ({}{}{})", peer_.refusal,
                      peer_.refusal.empty() ? "" : "; ", why);
  else
    why = is_open_ ? fmt::format("what arrived is not what its peer has sent ({})", why)
                   : fmt::format("it has another key, or is no source of this fleet ({})", why);
  context_->refuse(peer_name(), why);
  end(Error(ErrorCode::kPeerLost, why));
}

void TlsChannel::ended() {
  end(Error(ErrorCode::kPeerLost, is_open_ ? "the peer closed the connection"
                                           : "the peer closed the connection before it had proven "
                                             "its key"));
}

// An alert says to the peer why the connection ends.
void TlsChannel::closing() {
  if (flying_.empty() && !encrypted_out_.empty()) try_send(encrypted_out_);
}

bool TlsChannel::is_older_than(const StreamFence& fence) const {
  return peer_.key && peer_.key->identity.fence < fence;
}

// ---- writing ----

void TlsChannel::write(std::span<const std::span<const std::byte>> pieces) {
  WSYNC_CHECK(!is_writing_ && pieces.size() <= kPiecesMax, "one write at a time, of few pieces");
  std::ranges::copy(pieces, pieces_.begin());
  piece_ = 0;
  piece_count_ = pieces.size();
  is_writing_ = true;
  if (flying_.empty()) write_some();
}

bool TlsChannel::encrypt_piece() {
  std::span<const std::byte>& piece = pieces_[piece_];
  if (piece.empty()) return ++piece_, true;
  const auto part = piece.first(std::min(piece.size(), kRecordBytes));
  if (key_sent_bytes_ + part.size() > key_bytes_) {
    key_sent_bytes_ = 0;
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  std::size_t n = 0;
  ERR_clear_error();
  if (SSL_write_ex(ssl_.get(), part.data(), part.size(), &n) != 1) return false;
  key_sent_bytes_ += n;
  piece = piece.subspan(n);
  return true;
}

void TlsChannel::write_some() {
  while (piece_ < piece_count_ && encrypted_out_.size() < kBatchBytes)
    if (!encrypt_piece()) return end(Error(ErrorCode::kPeerLost, "encrypt: " + take_ssl_error()));
  flush();
  if (flying_.empty() && std::exchange(is_writing_, false)) events().on_written();
}

void TlsChannel::flush() {
  if (is_closing() || !flying_.empty() || encrypted_out_.empty()) return;
  flying_.swap(encrypted_out_);
  const std::array<std::span<const std::byte>, 1> pieces{flying_};
  send(pieces);
}

void TlsChannel::sent() {
  flying_.clear();
  write_some();
}

}  // namespace wsync::transport::tls
