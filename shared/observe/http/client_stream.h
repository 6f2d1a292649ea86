// ClientStream: the connection of a client to a server, plain or with TLS 1.2 or later. Every call
// ends at its limit, whatever the peer does.
//
// Thread: one at a time; a ClientTls may be shared by threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/observe/http/dial.h"

struct ssl_st;
struct ssl_ctx_st;

namespace wsync::http {

// Files in PEM. The key of a client has the access rights of a secret (private_path.h).
struct TlsFiles {
  std::string
      authorities;  // certificates that the server's is signed by; empty: those of the system
  std::string certificate;  // of this client, with those between; empty: it shows none
  std::string key;          // of this client's certificate
};

// What the connections with TLS of one client have in common.
class ClientTls {
 public:
  // kInvalidInput, kNotFound, kIo: a file cannot be used; the sentence names it.
  [[nodiscard]] static Result<std::shared_ptr<const ClientTls>> create(const TlsFiles& files);
  ~ClientTls();
  ClientTls(const ClientTls&) = delete;
  ClientTls& operator=(const ClientTls&) = delete;
  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_; }

 private:
  explicit ClientTls(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

class ClientStream {
 public:
  ClientStream() = default;  // closed
  // Connects, and with Endpoint::tls shakes hands: the server's certificate must be that of the
  // endpoint's host. Errors of dial(); kRefused if either side does not accept the other, which the
  // sentence explains.
  [[nodiscard]] static Result<ClientStream> open(const Endpoint& endpoint, const WaitLimit& limit);

  [[nodiscard]] bool is_open() const noexcept { return socket_.valid(); }
  // Whether nothing can be read and the peer has not closed the connection.
  [[nodiscard]] bool is_quiet() const;
  // kPeerLost, kDeadline, kCancelled, kRefused as open(); `doing` is for their sentences.
  [[nodiscard]] Result<> send(std::string_view text, const WaitLimit& limit,
                              std::string_view doing);
  // Returns how many bytes came, at least one; 0 when the peer has ended its side.
  [[nodiscard]] Result<std::size_t> receive(std::span<char> bytes, const WaitLimit& limit,
                                            std::string_view doing);

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  [[nodiscard]] Result<> shake_hands(const Endpoint& endpoint, const WaitLimit& limit);
  [[nodiscard]] Result<> flush(const WaitLimit& limit, std::string_view doing);
  [[nodiscard]] Result<std::size_t> fetch(const WaitLimit& limit, std::string_view doing);
  [[nodiscard]] static tl::unexpected<Error> broken(std::string_view doing);
  [[nodiscard]] Result<> send_plain(std::string_view text, const WaitLimit& limit,
                                    std::string_view doing);
  [[nodiscard]] Result<std::size_t> receive_plain(std::span<char> bytes, const WaitLimit& limit,
                                                  std::string_view doing);

  UniqueFd socket_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;  // null: plain
};

}  // namespace wsync::http
