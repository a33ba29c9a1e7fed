// A training loop of one's own: with four ranks in this process, or, started by torchrun
// (--no-python), mpirun or srun, with a rank in each process.
#include <iostream>

#include "tessera/compat/launcher.h"
#include "tessera/model/dataset.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/session.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: train_own_loop TEXT\n";
    return 2;
  }
  tessera::TrainerOptions options{.ranks = 4, .steps = 12, .evaluation_samples = 20};
  const bool speaks = tessera::join_launched(options).process == 0;
  const tessera::Model model = tessera::make_gpt(tessera::gpt_preset("gpt2-tiny"));
  const tessera::TokenDataset data({.path = argv[1], .sequence_length = 64});
  tessera::Session session(model, data, options, &data);
  const double before = session.evaluate().loss;
  while (const auto record = session.step(session.steps() < 4 ? 1e-3 : 3e-3)) {
    if (speaks) std::cout << "step " << record->step << "  loss " << record->loss << "\n";
    if (record->loss < 2.0) session.stop();
  }
  return session.evaluate().loss < before ? 0 : 1;
}
