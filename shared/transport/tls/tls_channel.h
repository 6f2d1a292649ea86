// TlsChannel: a connection whose bytes are encrypted, and whose ends have proven to each other that
// they have the key of the pair. OpenSSL works in memory here: libuv moves the encrypted bytes, so
// nothing blocks. A connection may be cut at any time, and each end finds that in its frames;
// therefore no farewell of TLS is sent or expected.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/units.h"
#include "shared/transport/tcp/channel.h"
#include "shared/transport/tls/tls_context.h"

namespace wsync::transport::tls {

// Bytes that a connection sends with one key. Then it changes the key, long before as many records
// are sent as AES-GCM allows for one key (RFC 8446, section 5.5).
inline constexpr std::uint64_t kKeyBytesDefault = 64 * limits::kGiB;

class TlsChannel final : public tcp::Channel {
 public:
  // `key`: of a receiver; std::nullopt: the end of a source.
  TlsChannel(std::shared_ptr<TlsContext> context, std::optional<PairKey> key,
             std::uint64_t key_bytes = kKeyBytesDefault);

  void write(std::span<const std::span<const std::byte>> pieces) override;
  [[nodiscard]] bool is_older_than(const StreamFence& fence) const override;

 protected:
  void connected() override;
  [[nodiscard]] std::span<std::byte> place() override { return encrypted_in_; }
  void arrived(std::size_t bytes) override;
  void sent() override;
  void ended() override;
  void closing() override;

 private:
  static constexpr std::size_t kPiecesMax = 4;
  static int read_encrypted(BIO* bio, char* out, int bytes);
  static int write_encrypted(BIO* bio, const char* from, int bytes);
  static long control(BIO* bio, int command, long number, void* pointer);
  [[nodiscard]] static BIO_METHOD* memory_method();

  // Continues the handshake. False: it is not over, or it has failed.
  [[nodiscard]] bool shake_hands();
  void read_all();
  // Encrypts and sends what is to be written, or reports that everything has left.
  void write_some();
  [[nodiscard]] bool encrypt_piece();
  void flush();
  // The peer, or somebody between, has broken the rules.
  void refuse();

  const std::shared_ptr<TlsContext> context_;
  const std::uint64_t key_bytes_;
  TlsPeer peer_;
  Ssl ssl_;
  Bytes encrypted_in_;                 // place for what arrives
  std::span<const std::byte> unread_;  // of it, what OpenSSL has not taken yet
  Bytes encrypted_out_;                // that waits
  Bytes flying_;                       // that libuv borrows; empty: nothing is being sent
  std::array<std::span<const std::byte>, kPiecesMax> pieces_{};  // to be encrypted
  std::size_t piece_ = 0;  // the first of them that is not encrypted completely
  std::size_t piece_count_ = 0;
  std::uint64_t key_sent_bytes_ = 0;  // with the present key
  bool is_writing_ = false;
  bool is_open_ = false;
  const bool is_source_;
};

}  // namespace wsync::transport::tls
