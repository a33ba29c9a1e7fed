#include "tessera/trainer/parameter_hash.h"

#include <openssl/evp.h>

#include <array>
#include <bit>

#include "tessera/core/error.h"

namespace tessera {
namespace {

void check(int ok) { require(ok == 1, ErrorCode::kInternal, "OpenSSL could not compute SHA-256"); }

}  // namespace

class ParameterHash::Context {
 public:
  Context() : handle_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(handle_ != nullptr ? 1 : 0);
    check(EVP_DigestInit_ex(get(), EVP_sha256(), nullptr));
  }
  EVP_MD_CTX* get() const { return handle_.get(); }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> handle_;
};

ParameterHash::ParameterHash() : context_(std::make_unique<Context>()) {}
ParameterHash::~ParameterHash() = default;

void ParameterHash::add(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little, "the hash is of little-endian floats");
  check(EVP_DigestUpdate(context_->get(), values.data(), values.size_bytes()));
}

std::string ParameterHash::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_->get(), digest.data(), &size));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4U];
    text += kDigits[digest[i] & 15U];
  }
  return text;
}

std::string parameters_sha256(const std::vector<FullParameter>& parameters) {
  ParameterHash hash;
  for (const FullParameter& parameter : parameters) hash.add(parameter.values);
  return hash.finish();
}

}  // namespace tessera
