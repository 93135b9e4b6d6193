"""The second workload family: one small GPT trained end to end and block-locally under one wall-clock budget."""
