#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"

// What PiSSA takes out of a model's weights.
namespace tessera::pissa_test {
namespace {

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";

std::vector<float> read(const PretrainedGpt& model, const std::string& name, std::size_t numel) {
  std::vector<float> values(numel);
  model.read(name, values);
  return values;
}

/// (M, K) (K, N).
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b,
                            std::size_t inner) {
  const std::size_t rows = a.size() / inner, columns = b.size() / inner;
  std::vector<double> c(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < inner; ++k) {
      for (std::size_t j = 0; j < columns; ++j) {
        c[i * columns + j] +=
            static_cast<double>(a[i * inner + k]) * static_cast<double>(b[k * columns + j]);
      }
    }
  }
  return c;
}

std::vector<float> transposed(const std::vector<float>& a, std::size_t columns) {
  const std::size_t rows = a.size() / columns;
  std::vector<float> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i % columns * rows + i / columns] = a[i];
  return result;
}

double largest(const std::vector<double>& values) {
  double most = 0.0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

/// The largest singular value, by many steps of the power method: never above it.
double spectral_norm(const std::vector<float>& w, std::size_t columns) {
  std::vector<float> v(columns, 1.0F);
  double norm = 0.0;
  for (int step = 0; step < 300; ++step) {
    const std::vector<double> u = product(w, v, columns);
    const std::vector<double> next =
        product(transposed(w, columns), std::vector<float>(u.begin(), u.end()), u.size());
    double length = 0.0;
    for (const double value : next) length += value * value;
    length = std::sqrt(length);
    for (std::size_t i = 0; i < columns; ++i) v[i] = static_cast<float>(next[i] / length);
    norm = std::sqrt(length);
  }
  return norm;
}

// The factors are those of PEFT but for the signs of pairs.
TEST(Pissa, ProductsAreThoseOfPeft) {
  for (const std::string name : {"llama_pissa", "gpt2_pissa"}) {
    const PretrainedGpt base = open_hugging_face(
        name == "gpt2_pissa" ? kGolden + "adapters/gpt2_base" : kGolden + "families/llama");
    const PretrainedGpt of_peft = open_adapter(base, kGolden + "adapters/" + name + "_new");
    const PretrainedGpt ours = with_adapter(base, of_peft.config().adapter);
    int factors = 0, magnitudes = 0;
    for (const auto& layer : make_gpt(ours.config()).layers) {
      const auto& specs = layer->parameters();
      for (std::size_t p = 0; p < specs.size(); ++p) {
        const auto numel = static_cast<std::size_t>(specs[p].shape.numel());
        if (specs[p].name.ends_with("lora_magnitude_vector")) {
          ++magnitudes;
          EXPECT_LT(test::relative_error(read(ours, specs[p].name, numel),
                                         read(of_peft, specs[p].name, numel)),
                    1e-6);
        }
        if (!specs[p].name.ends_with("lora_A.weight")) continue;
        ++factors;
        const auto rank = static_cast<std::size_t>(specs[p].shape[0]);
        std::string name_of_b = specs[p].name;
        name_of_b.replace(name_of_b.find("lora_A"), 6, "lora_B");
        const ParameterSpec& spec_of_b = *std::ranges::find(specs, name_of_b, &ParameterSpec::name);
        const auto of_b = static_cast<std::size_t>(spec_of_b.shape.numel());
        const auto product_of = [&](const PretrainedGpt& model) {
          const std::vector<double> all =
              product(read(model, name_of_b, of_b), read(model, specs[p].name, numel), rank);
          return std::vector<float>(all.begin(), all.end());
        };
        EXPECT_LT(test::relative_error(product_of(ours), product_of(of_peft)), 1e-5)
            << specs[p].name;
      }
    }
    EXPECT_EQ(factors, name == "llama_pissa" ? 8 : 4);
    EXPECT_EQ(magnitudes, name == "llama_pissa" ? 0 : 4);
  }
}

// Of matrices that are large enough not to be decomposed whole: tall, wide and square.
TEST(Pissa, TakesTheLargestSingularValuesOutOfTheWeights) {
  const test::TemporaryFolder folder;
  GptConfig config = gpt_preset("llama-tiny");
  config.layers = 1;
  config.vocab_size = 20;
  config.width = 64;
  config.heads = config.kv_heads = 4;
  config.head_width = 16;
  {
    PretrainedWriter writer = write_hugging_face(folder.path("base"), config);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const auto& layer : make_gpt(config).layers) {
      for (const ParameterSpec& spec : layer->parameters()) {
        std::vector<float> values(static_cast<std::size_t>(spec.shape.numel()));
        for (float& value : values) value = normal(random);
        writer.write(spec.name, values);
      }
    }
    writer.finish();
  }
  const PretrainedGpt base = open_hugging_face(folder.path("base"));
  constexpr std::size_t kRank = 3;
  const AdapterConfig adapter =
      parse_adapter("lora", "r=3,alpha=6,init=pissa,targets=o_proj,down_proj,up_proj", config);
  const PretrainedGpt adapted = with_adapter(base, adapter);
  for (const std::string module : {"self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"}) {
    SCOPED_TRACE(module);
    const auto hidden = static_cast<std::size_t>(config.mlp_width_used());
    const std::size_t rows = module == "mlp.up_proj" ? hidden : 64;
    const std::size_t columns = module == "mlp.down_proj" ? hidden : 64;
    const std::string name = "layers.0." + module;
    const std::vector<float> a = read(adapted, name + ".lora_A.weight", kRank * columns);
    const std::vector<float> b = read(adapted, name + ".lora_B.weight", rows * kRank);
    // Gate and up are one matrix, gate first.
    const bool is_up = module == "mlp.up_proj";
    const std::string matrix = is_up ? "layers.0.mlp.gate_up_proj.weight" : name + ".weight";
    const std::size_t skipped = is_up ? rows * columns : 0;
    const auto rows_of = [&](const PretrainedGpt& model) {
      const std::vector<float> all = read(model, matrix, skipped + rows * columns);
      return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(skipped), all.end());
    };
    const std::vector<float> w = rows_of(base), rest = rows_of(adapted);
    const std::vector<double> taken = product(b, a, kRank);
    for (std::size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(rest[i]) + 2.0 * taken[i], static_cast<double>(w[i]), 1e-5);
    }
    // What is left is orthogonal to what was taken, on both sides, and smaller.
    EXPECT_LT(largest(product(rest, transposed(a, columns), columns)), 2e-4);
    EXPECT_LT(largest(product(transposed(b, kRank), rest, rows)), 2e-4);
    double least = 1e30;
    for (std::size_t r = 0; r < kRank; ++r) {
      double sum = 0.0;
      for (std::size_t i = 0; i < columns; ++i) {
        sum += std::pow(static_cast<double>(a[r * columns + i]), 2);
      }
      least = std::min(least, 2.0 * sum);  // s = scale * |a|^2
    }
    EXPECT_LT(spectral_norm(rest, columns), least);
  }
  const PretrainedGpt large =
      with_adapter(base, parse_adapter("lora", "r=65,init=pissa,targets=o_proj", config));
  EXPECT_THROW(read(large, "layers.0.self_attn.o_proj.lora_A.weight", 65 * 64), Error);
}

}  // namespace
}  // namespace tessera::pissa_test
