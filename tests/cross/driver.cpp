// Runs the kernels without torch and Python: driver CASES DATA writes the filtered gradients over
// DATA. run.py writes both and compares the result with the float64 reference.
//
// A case is lines "name value ...", first those of a FilterDesign, then those of a TensorLayout,
// then "run BYTES": so many bytes of DATA are the memory of its gradient.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cpu.h"
#include "engine.h"

namespace {

class Fields {
 public:
  void set(const std::string& name, const std::string& values) { fields_[name] = values; }
  double number(const char* name) const { return std::strtod(text(name).c_str(), nullptr); }
  const std::string& text(const char* name) const { return fields_.at(name); }
  template <class T>
  std::vector<T> list(const char* name) const {
    std::vector<T> numbers;
    std::istringstream values(text(name));
    for (std::string value; values >> value;) {  // streams read no hexadecimal fractions
      numbers.push_back(static_cast<T>(std::strtod(value.c_str(), nullptr)));
    }
    return numbers;
  }

 private:
  std::map<std::string, std::string> fields_;
};

void run_slots(int slots, const std::function<void(int)>& task) {
  std::vector<std::thread> threads;
  for (int slot = 0; slot < slots; ++slot) threads.emplace_back(task, slot);
  for (std::thread& thread : threads) thread.join();
}

bool filter(const Fields& fields, char* data, specgrad::Workspace& workspace) {
  const specgrad::Program program("case", {specgrad::FilterDesign(fields)},
                                  {specgrad::TensorLayout(fields)});
  workspace.data = {data};
  return program.run(true, 3, run_slots, workspace) == specgrad::Outcome::done;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "usage: driver CASES DATA\n"), 2;
  std::ifstream stored(arguments[2], std::ios::binary);
  std::vector<char> data((std::istreambuf_iterator<char>(stored)), {});
  std::ifstream cases(arguments[1]);
  specgrad::Workspace workspace;
  Fields fields;
  size_t place = 0;
  int filtered = 0;
  for (std::string line; std::getline(cases, line);) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space), values = line.substr(space + 1);
    if (name != "run") {
      fields.set(name, values);
      continue;
    }
    if (!filter(fields, data.data() + place, workspace)) return 1;
    place += std::stoul(values);
    ++filtered;
  }
  if (place != data.size()) return std::fprintf(stderr, "the data have another size\n"), 1;
  std::ofstream(arguments[2], std::ios::binary).write(data.data(), static_cast<long>(data.size()));
  std::cout << filtered << " gradients with " << specgrad::isa_name(specgrad::chosen_isa()) << "\n";
}
