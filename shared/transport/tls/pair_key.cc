#include "shared/transport/pair_key.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::transport {
namespace {

// Which protocol the key is for. A key of another one never fits.
constexpr std::string_view kPairLabel = "wsync data 1 ";
constexpr std::size_t kHexOfWord = 16;

struct FreeKdf {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

bool read_word(std::string_view& text, std::uint64_t& word) {
  if (text.size() <= kHexOfWord || text[kHexOfWord] != ' ') return false;
  const char* end = text.data() + kHexOfWord;
  const auto parsed = std::from_chars(text.data(), end, word, 16);
  text.remove_prefix(kHexOfWord + 1);
  return parsed.ec == std::errc{} && parsed.ptr == end;
}

}  // namespace

std::string to_text(const PairIdentity& identity) {
  return fmt::format("{}{:016x} {:016x} {:016x} {}", kPairLabel, identity.fence.epoch,
                     identity.fence.run_id[0], identity.fence.run_id[1], identity.receiver);
}

std::optional<PairIdentity> parse_pair_identity(std::string_view text) {
  if (!text.starts_with(kPairLabel)) return std::nullopt;
  const std::string_view whole = text;
  text.remove_prefix(kPairLabel.size());
  PairIdentity identity;
  if (!read_word(text, identity.fence.epoch) || !read_word(text, identity.fence.run_id[0]) ||
      !read_word(text, identity.fence.run_id[1]) || text.size() > kPairReceiverBytes)
    return std::nullopt;
  identity.receiver = text;
  // One identity has one text: "A" and "a" are the same digit, but not the same key.
  if (to_text(identity) != whole) return std::nullopt;
  return identity;
}

std::optional<PairSecret> pair_secret_of(std::span<const std::byte> bytes) {
  PairSecret secret;
  if (bytes.size() != secret.size()) return std::nullopt;
  std::ranges::copy(bytes, secret.begin());
  return secret;
}

PairSecret make_pair_secret() {
  PairSecret secret;
  const int done =
      RAND_priv_bytes(reinterpret_cast<unsigned char*>(secret.data()), int{secret.size()});
  WSYNC_CHECK(done == 1, "the operating system gives random bits");
  return secret;
}

PairKey derive_pair_key(const PairSecret& source, PairIdentity identity) {
  const std::unique_ptr<EVP_KDF, FreeKdf> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  WSYNC_CHECK(kdf != nullptr, "libcrypto 3 has HKDF");
  const std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(EVP_KDF_CTX_new(kdf.get()));
  std::string info = to_text(identity);
  std::string digest = "SHA256";
  PairSecret from = source;
  const std::array parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, from.data(), from.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  PairKey key{.identity = std::move(identity)};
  const int done =
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.secret.data()),
                     key.secret.size(), parameters.data());
  WSYNC_CHECK(done == 1, "HKDF makes 32 bytes of 32 bytes");
  return key;
}

}  // namespace wsync::transport
