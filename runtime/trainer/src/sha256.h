#pragma once

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera {

/// OpenSSL's, which uses the processor's instructions for it.
class Sha256 {
 public:
  Sha256() : handle_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(handle_ != nullptr ? 1 : 0);
    check(EVP_DigestInit_ex(handle_.get(), EVP_sha256(), nullptr));
  }
  void add(std::span<const float> values) {
    static_assert(std::endian::native == std::endian::little,
                  "the hash is of little-endian floats");
    check(EVP_DigestUpdate(handle_.get(), values.data(), values.size_bytes()));
  }
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    check(EVP_DigestFinal_ex(handle_.get(), digest.data(), &size));
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (unsigned i = 0; i < size; ++i) {
      text += kDigits[digest[i] >> 4U];
      text += kDigits[digest[i] & 15U];
    }
    return text;
  }

 private:
  static void check(int ok) {
    require(ok == 1, ErrorCode::kInternal, "OpenSSL could not compute SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> handle_;
};

}  // namespace tessera
