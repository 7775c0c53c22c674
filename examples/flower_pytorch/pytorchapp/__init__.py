"""Logistic regression in PyTorch, federated with FedMom."""
