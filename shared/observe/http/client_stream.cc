#include "shared/observe/http/client_stream.h"

#include <array>
#include <cerrno>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/private_path.h"
#include "shared/base/units.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

constexpr std::size_t kKeyBytesMax = 64 * limits::kKiB;
constexpr std::size_t kPieceBytes = 16 * limits::kKiB;

tl::unexpected<Error> lost(std::string_view doing) {
  return fail(ErrorCode::kPeerLost,
              fmt::format("the server closed the connection while {}", doing));
}

// The oldest error of OpenSSL on this thread, whose list is emptied.
std::string ssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason is known" : reason;
}

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

}  // namespace

Result<std::shared_ptr<const ClientTls>> ClientTls::create(const TlsFiles& files) {
  ERR_clear_error();
  std::unique_ptr<SSL_CTX, FreeContext> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return fail(ErrorCode::kInternal, "TLS: " + ssl_error());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const auto unusable = [](const std::string& path, std::string_view what) {
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{}: expected {} in PEM, found something else: {}", path, what, ssl_error()));
  };
  if (files.authorities.empty()) {
    if (SSL_CTX_set_default_verify_paths(context.get()) != 1)
      return fail(ErrorCode::kIo, "the certificates of this system: " + ssl_error());
  } else if (SSL_CTX_load_verify_locations(context.get(), files.authorities.c_str(), nullptr) !=
             1) {
    return unusable(files.authorities, "certificates of authorities");
  }
  if (files.certificate.empty())
    return std::shared_ptr<const ClientTls>(new ClientTls(context.release()));
  // Checks who can read it; OpenSSL reads it again.
  (void)WSYNC_TRY(read_secret_file(files.key, "key", kKeyBytesMax));
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1)
    return unusable(files.certificate, "a certificate");
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return unusable(files.key, "the key of " + files.certificate);
  return std::shared_ptr<const ClientTls>(new ClientTls(context.release()));
}

ClientTls::~ClientTls() { SSL_CTX_free(context_); }

void ClientStream::FreeSsl::operator()(ssl_st* ssl) const { SSL_free(ssl); }

Result<ClientStream> ClientStream::open(const Endpoint& endpoint, const WaitLimit& limit) {
  ClientStream stream;
  stream.socket_ = WSYNC_TRY(dial(endpoint, limit));
  if (endpoint.tls) WSYNC_TRY(stream.shake_hands(endpoint, limit));
  return stream;
}

// ---- TLS ----

// OpenSSL works in memory. Its own sockets raise SIGPIPE, which ends a process that does not expect
// it, such as a trainer's.
Result<> ClientStream::shake_hands(const Endpoint& endpoint, const WaitLimit& limit) {
  constexpr std::string_view kDoing = "agreeing on keys";
  ERR_clear_error();
  ssl_.reset(SSL_new(endpoint.tls->get()));
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (!ssl_ || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return fail(ErrorCode::kResourceExhausted, "TLS: " + ssl_error());
  }
  SSL_set_bio(ssl_.get(), in, out);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), endpoint.host.c_str()) != 1) {
    ERR_clear_error();
    if (SSL_set_tlsext_host_name(ssl_.get(), endpoint.host.c_str()) != 1 ||
        SSL_set1_host(ssl_.get(), endpoint.host.c_str()) != 1)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} is no name of a host", quote_text(endpoint.host)));
  }
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(ssl_.get());
    const int why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_NONE) return flush(limit, kDoing);
    if (why == SSL_ERROR_WANT_READ) {
      WSYNC_TRY(flush(limit, kDoing));
      if (WSYNC_TRY(fetch(limit, kDoing)) == 0) return lost(kDoing);
      continue;
    }
    const std::string reason = ssl_error();
    (void)flush(limit, kDoing);  // the peer is to hear why
    if (const long verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
      return fail(ErrorCode::kRefused, fmt::format("the server's certificate is not accepted: {}",
                                                   X509_verify_cert_error_string(verified)));
    return fail(ErrorCode::kRefused, "no connection with TLS: " + reason);
  }
}

// Sends what OpenSSL has encrypted.
Result<> ClientStream::flush(const WaitLimit& limit, std::string_view doing) {
  std::array<char, kPieceBytes> piece;
  for (;;) {
    const int bytes =
        BIO_read(SSL_get_wbio(ssl_.get()), piece.data(), static_cast<int>(piece.size()));
    if (bytes <= 0) return {};
    WSYNC_TRY(send_plain({piece.data(), static_cast<std::size_t>(bytes)}, limit, doing));
  }
}

// Takes what has come for OpenSSL to decrypt. Returns the number of bytes; 0: the peer has ended.
Result<std::size_t> ClientStream::fetch(const WaitLimit& limit, std::string_view doing) {
  std::array<char, kPieceBytes> piece;
  const std::size_t bytes = WSYNC_TRY(receive_plain(piece, limit, doing));
  if (bytes > 0) BIO_write(SSL_get_rbio(ssl_.get()), piece.data(), static_cast<int>(bytes));
  return bytes;
}

tl::unexpected<Error> ClientStream::broken(std::string_view doing) {
  // With TLS 1.3 the client hears only now that the server does not accept it.
  const unsigned long code = ERR_peek_error();
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET)
    return fail(ErrorCode::kRefused, "the server ended the connection: " + ssl_error());
  return fail(ErrorCode::kPeerLost,
              fmt::format("the connection with TLS ended while {}: {}", doing, ssl_error()));
}

// ---- bytes ----

bool ClientStream::is_quiet() const {
  if (ssl_ && (SSL_has_pending(ssl_.get()) != 0 || BIO_pending(SSL_get_rbio(ssl_.get())) > 0))
    return false;
  pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

Result<> ClientStream::send(std::string_view text, const WaitLimit& limit, std::string_view doing) {
  if (!ssl_) return send_plain(text, limit, doing);
  ERR_clear_error();
  // Memory takes everything at once.
  if (SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())) <= 0) return broken(doing);
  return flush(limit, doing);
}

Result<std::size_t> ClientStream::receive(std::span<char> bytes, const WaitLimit& limit,
                                          std::string_view doing) {
  if (!ssl_) return receive_plain(bytes, limit, doing);
  for (;;) {
    ERR_clear_error();
    std::size_t received = 0;
    const int result = SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &received);
    if (result == 1) return received;
    const int why = SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_ZERO_RETURN) return 0;
    if (why != SSL_ERROR_WANT_READ) return broken(doing);
    WSYNC_TRY(flush(limit, doing));  // an answer to a change of keys
    if (WSYNC_TRY(fetch(limit, doing)) == 0) return lost(doing);
  }
}

Result<> ClientStream::send_plain(std::string_view text, const WaitLimit& limit,
                                  std::string_view doing) {
  while (!text.empty()) {
    const ssize_t n = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      WSYNC_TRY(wait_for(socket_.get(), POLLOUT, limit, doing));
    } else if (errno != EINTR) {
      return lost(doing);
    }
  }
  return {};
}

Result<std::size_t> ClientStream::receive_plain(std::span<char> bytes, const WaitLimit& limit,
                                                std::string_view doing) {
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return lost(doing);
    WSYNC_TRY(wait_for(socket_.get(), POLLIN, limit, doing));
  }
}

}  // namespace wsync::http
