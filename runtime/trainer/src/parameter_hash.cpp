#include "tessera/trainer/parameter_hash.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>

#include "tessera/core/error.h"

namespace tessera {

std::string parameters_sha256(const std::vector<FullParameter>& parameters) {
  static_assert(std::endian::native == std::endian::little, "the hash is of little-endian floats");
  const auto check = [](int ok) {
    require(ok == 1, ErrorCode::kInternal, "OpenSSL could not compute SHA-256");
  };
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  check(context != nullptr ? 1 : 0);
  check(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr));
  for (const FullParameter& parameter : parameters) {
    check(EVP_DigestUpdate(context.get(), parameter.values.data(),
                           parameter.values.size() * sizeof(float)));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context.get(), digest.data(), &size));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4U];
    text += kDigits[digest[i] & 15U];
  }
  return text;
}

}  // namespace tessera
