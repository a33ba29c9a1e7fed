#include "tessera/trainer/parameter_hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

std::size_t bytes_of(const std::vector<float>& values) { return std::span(values).size_bytes(); }

}  // namespace

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

class ParameterHash::Impl {
 public:
  Impl(HostWork* work, std::size_t limit)
      : work_(work),
        limit_(limit),
        thread_(start_thread("hashing the parameters", [this] { run(); })) {}
  ~Impl() { end(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void add(std::vector<float> values) {
    const std::size_t bytes = bytes_of(values);
    std::unique_lock lock(mutex_);
    changed_.wait(
        lock, [&] { return failure_ || waiting_bytes_ == 0 || waiting_bytes_ + bytes <= limit_; });
    if (failure_) std::rethrow_exception(failure_);
    waiting_bytes_ += bytes;
    most_waiting_bytes_ = std::max(most_waiting_bytes_, waiting_bytes_);
    waiting_.push_back(std::move(values));
    changed_.notify_all();
  }
  std::string finish() {
    end();
    if (failure_) std::rethrow_exception(failure_);
    return hash_.finish();
  }
  std::size_t most_waiting_bytes() const {
    const std::lock_guard lock(mutex_);
    return most_waiting_bytes_;
  }

 private:
  /// Bytes that wait are hashed first.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  void run() {
    std::unique_lock lock(mutex_);
    try {
      for (;;) {
        changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        std::vector<float> values = std::move(waiting_.front());
        waiting_.pop_front();
        lock.unlock();
        hash(values);
        const std::size_t bytes = bytes_of(values);
        values = {};
        lock.lock();
        waiting_bytes_ -= bytes;
        changed_.notify_all();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      failure_ = std::current_exception();
      changed_.notify_all();
    }
  }
  void hash(std::span<const float> values) {
    constexpr std::size_t kPiece = std::size_t{4}
                                   << 20U;  // elements, between two words on progress
    for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
      const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
      hash_.add(piece);
      advance_work(work_, HostTask::kHash, static_cast<std::int64_t>(piece.size_bytes()));
    }
  }

  HostWork* const work_;
  const std::size_t limit_;
  Sha256 hash_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<float>> waiting_;
  std::size_t waiting_bytes_ = 0;  ///< with those that are being hashed
  std::size_t most_waiting_bytes_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  ///< last: it uses the others
};

ParameterHash::ParameterHash(HostWork* work, std::size_t most_waiting_bytes)
    : impl_(std::make_unique<Impl>(work, most_waiting_bytes)) {}
ParameterHash::~ParameterHash() = default;
void ParameterHash::add(std::vector<float> values) { impl_->add(std::move(values)); }
std::string ParameterHash::finish() { return impl_->finish(); }
std::size_t ParameterHash::most_waiting_bytes() const { return impl_->most_waiting_bytes(); }

std::string parameters_sha256(const std::vector<FullParameter>& parameters) {
  Sha256 hash;
  for (const FullParameter& parameter : parameters) hash.add(parameter.values);
  return hash.finish();
}

}  // namespace tessera
