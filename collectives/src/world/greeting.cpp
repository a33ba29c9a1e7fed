#include "world/greeting.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Bytes = std::span<const unsigned char>;
using Magic = std::array<unsigned char, 8>;
using Nonce = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

/// The last character counts the versions of this language.
constexpr Magic kMagic{'t', 'e', 's', 's', 'e', 'r', 'a', '2'};

// The messages, as they go over the line; all machines have one byte order.
struct Hello {  // of both sides
  Magic magic = kMagic;
  Nonce nonce{};
};
struct Introduction {
  Claim claim{};
  Proof proof{};
};
enum class Verdict : std::uint32_t { kWelcome = 1, kOtherJob };
struct Answer {
  Verdict verdict = Verdict::kWelcome;
  Proof proof{};  // of kWelcome only
};

template <typename Message>
Bytes bytes_of(const Message& message) {
  return {reinterpret_cast<const unsigned char*>(&message), sizeof(message)};
}

Nonce make_nonce() {
  Nonce nonce;
  const ssize_t n = getrandom(nonce.data(), nonce.size(), 0);
  require(n == static_cast<ssize_t>(nonce.size()), ErrorCode::kUnavailable,
          "the system gives no random numbers: ", std::strerror(errno));
  return nonce;
}

Proof hmac(Bytes key, std::string_view what, Bytes nonces, Bytes said) {
  std::vector<unsigned char> text(what.begin(), what.end());
  text.insert(text.end(), nonces.begin(), nonces.end());
  text.insert(text.end(), said.begin(), said.end());
  Proof proof{};
  unsigned int length = 0;
  const unsigned char* const done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                         text.data(), text.size(), proof.data(), &length);
  require(done != nullptr && length == proof.size(), ErrorCode::kInternal,
          "OpenSSL could not compute HMAC-SHA256");
  return proof;
}

bool same(const Proof& one, const Proof& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Proof proof_of_claim(const JobKey& key, Bytes nonces, const Claim& claim) {
  return hmac(key, "claim", nonces, bytes_of(claim));
}

Proof proof_of_welcome(const JobKey& key, Bytes nonces, const Claim& claim) {
  return hmac(key, "welcome", nonces, bytes_of(claim));
}

/// A message fits what a connection has room for at its beginning, so nobody waits for that.
template <typename Message>
bool say(const Socket& socket, const Message& message) {
  return send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(message));
}

template <typename Message>
bool hear(const Socket& socket, Message& message, const Deadline& deadline,
          const std::function<bool()>& give_up) {
  constexpr int kLook = 100;  // ms
  auto* const to = reinterpret_cast<unsigned char*>(&message);
  for (std::size_t received = 0; received < sizeof(message);) {
    const ssize_t n = recv(socket.fd(), to + received, sizeof(message) - received, MSG_DONTWAIT);
    if (n > 0) {
      received += static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (deadline.over() || (give_up && give_up())) return false;
    pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    poll(&readable, 1, std::min(deadline.milliseconds_left(), kLook));
  }
  return true;
}

}  // namespace

JobKey make_job_key(const std::string& token, int port) {
  const std::string secret = token.empty() ? concat("port ", port) : "token " + token;
  return hmac(bytes_of(kMagic), secret, {}, {});
}

Greeted greet(const Socket& socket, const JobKey& key, const Claim& claim, const Deadline& deadline,
              const std::function<bool()>& give_up) {
  const Hello own{.nonce = make_nonce()};
  Hello other;
  if (!say(socket, own) || !hear(socket, other, deadline, give_up)) return Greeted::kNoAnswer;
  if (other.magic != kMagic) return Greeted::kOtherJob;
  const std::array nonces{own.nonce, other.nonce};
  const Introduction introduction{.claim = claim,
                                  .proof = proof_of_claim(key, bytes_of(nonces), claim)};
  Answer answer;
  if (!say(socket, introduction) || !hear(socket, answer, deadline, give_up)) {
    return Greeted::kNoAnswer;
  }
  const bool good = answer.verdict == Verdict::kWelcome &&
                    same(answer.proof, proof_of_welcome(key, bytes_of(nonces), claim));
  return good ? Greeted::kWelcome : Greeted::kOtherJob;
}

bool Guest::heard(std::size_t bytes) {
  while (received_ < bytes) {
    const ssize_t n =
        recv(socket_.fd(), buffer_.data() + received_, bytes - received_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    gone_ = n == 0 || (n < 0 && errno != EAGAIN);
    if (n <= 0) return false;
    received_ += static_cast<std::size_t>(n);
  }
  received_ = 0;
  return true;
}

Guest::State Guest::advance(const JobKey& key, int process) {
  static_assert(sizeof(Hello) <= kMostBytes && sizeof(Introduction) <= kMostBytes);
  if (!challenged_) {
    if (!heard(sizeof(Hello))) return gone_ ? State::kStranger : State::kGreeting;
    Hello theirs;
    std::memcpy(&theirs, buffer_.data(), sizeof(theirs));
    const Hello own{.nonce = make_nonce()};
    const auto rest = std::copy(theirs.nonce.begin(), theirs.nonce.end(), nonces_.begin());
    std::copy(own.nonce.begin(), own.nonce.end(), rest);
    if (theirs.magic != kMagic || !say(socket_, own)) return State::kStranger;
    challenged_ = true;
  }
  if (!heard(sizeof(Introduction))) return gone_ ? State::kStranger : State::kGreeting;
  Introduction introduction;
  std::memcpy(&introduction, buffer_.data(), sizeof(introduction));
  claim_ = introduction.claim;
  if (!same(introduction.proof, proof_of_claim(key, nonces_, claim_))) {
    say(socket_, Answer{.verdict = Verdict::kOtherJob});
    return State::kOtherJob;
  }
  const bool meant = claim_.to == process;
  const Answer welcome{.proof = proof_of_welcome(key, nonces_, claim_)};
  return meant && say(socket_, welcome) ? State::kProved : State::kStranger;
}

}  // namespace tessera
