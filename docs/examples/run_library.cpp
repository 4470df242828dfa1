// Runs a package that bolide.aot_compile has written, on a tensor of ones: run_library model.pt2 2 3
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <ATen/ops/ones.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "which package?\n");
    return 1;
  }
  std::vector<int64_t> sizes;
  for (int at = 2; at < count; ++at) {
    sizes.push_back(std::atoll(words[at]));
  }
  try {
    torch::inductor::AOTIModelPackageLoader library(words[1]);
    at::Tensor result = library.run({at::ones(sizes)})[0].contiguous();
    for (int64_t at = 0; at < result.numel(); ++at) {
      std::printf("%.9g\n", result.data_ptr<float>()[at]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
